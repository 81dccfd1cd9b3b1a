//! Burn's layers under every strategy: the names, configurations, signatures, parameter names and records of `burn::nn`.
//!
//! A model of Burn changes one `use` line, and gives constructors the [`Place`](epl_core::Place) of its part instead of a
//! device:
//!
//! ```diff
//! - use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
//! + use epl::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
//! ```
//!
//! Where Burn's `init` takes nothing, as `DropoutConfig::new(0.1).init()`, it takes nothing here: a layer that draws finds
//! its place by the closure that makes the model ([`Place::current`](epl_core::Place::current)).
//!
//! ```
//! use burn::{module::Module, tensor::{Tensor, activation::relu}};
//! use epl_core::{Place, testing};
//! use epl_modules::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
//!
//! #[derive(Module, Debug)]
//! struct Net { hidden: Linear, norm: BatchNorm, dropout: Dropout, output: Linear }
//!
//! impl Net {
//!     fn new(at: &Place) -> Self {
//!         Self {
//!             hidden: LinearConfig::new(8, 32).init(at),
//!             norm: BatchNormConfig::new(32).init(at),
//!             dropout: DropoutConfig::new(0.1).init(),
//!             output: LinearConfig::new(32, 2).init(at),
//!         }
//!     }
//!
//!     fn forward(&self, rows: Tensor<2>) -> Tensor<2> {
//!         self.output.forward(self.dropout.forward(relu(self.norm.forward(self.hidden.forward(rows)))))
//!     }
//! }
//!
//! // Of both linear layers each of two ranks holds half of the columns.
//! testing::run((1, 2, 1), |epl| {
//!     let net = epl.place().enter(Net::new); // as `Epl::build` and `Engine::build` do
//!     assert_eq!(net.forward(Tensor::ones([4, 8], epl.place().device())).dims(), [4, 2]);
//!     Ok(())
//! });
//! ```
//!
//! On one rank the layers compute Burn's numbers, and load Burn's records. Replicas compute what one rank with the rows of all
//! would: masks and noise belong to samples, and a [`BatchNorm`] takes its statistics over all replicas. On a tensor axis of
//! several ranks, by [`Place::split`](epl_core::Place::split) or `dist.tensor_parallel_size`, what can be cut is, with whole
//! inputs and outputs. In mixed precision each computes in f32 what the table says.
//!
//! | layer of Burn | under a split | computed in f32 | what else is promised |
//! |---|---|---|---|
//! | [`Linear`] | columns | the sums inside a product | fewer columns than ranks: whole |
//! | [`Embedding`] | vectors | the sums in the gradient | fewer vectors than ranks: whole |
//! | [`conv::Conv1d`], [`conv::Conv2d`], [`conv::Conv3d`], [`conv::ConvTranspose1d`], [`conv::ConvTranspose2d`], [`conv::ConvTranspose3d`] | output channels, or groups | the sums | fewer channels than ranks, or groups that do not divide over them: whole |
//! | [`conv::DeformConv2d`] | whole | all | |
//! | [`LayerNorm`], [`RmsNorm`], [`GroupNorm`], [`InstanceNorm`] | whole | all, and the parameters | |
//! | [`BatchNorm`] | whole | all, and the parameters | statistics of all replicas, or of each by [`BatchNormConfig::statistics`] |
//! | [`Dropout`], [`GaussianNoise`], [`activation::RRelu`] | nothing to cut | all | masks by sample: the same in every layout |
//! | [`PRelu`] | whole | nothing | |
//! | [`Gelu`], [`Relu`], [`Sigmoid`], [`Tanh`], [`activation::SiLU`] | nothing to cut | all | one pass, and one node of the graph |
//! | [`Celu`], [`Elu`], [`GLU`], [`HardShrink`], [`HardSigmoid`], [`LeakyRelu`], [`Selu`], [`Shrink`], [`SoftShrink`], [`Softplus`], [`Softsign`], [`ThresholdedRelu`], and of [`activation`] [`HardSwish`](activation::HardSwish), [`Hardtanh`](activation::Hardtanh), [`LogSigmoid`](activation::LogSigmoid), [`Mish`](activation::Mish), [`Relu6`](activation::Relu6), [`Tanhshrink`](activation::Tanhshrink), [`Threshold`](activation::Threshold) | nothing to cut | as Burn | they are Burn's own |
//! | [`pool`], [`interpolate`], [`PixelShuffle`], [`PixelUnshuffle`], [`Fold4d`], [`Unfold4d`], [`CosineSimilarity`], [`PairwiseDistance`], [`LocalResponseNorm`], [`Identity`] | nothing to cut | as Burn | they are Burn's own |
//! | [`SwiGlu`] | columns | the sums inside products; Swish | fewer columns than ranks: whole |
//! | [`attention::MultiHeadAttention`] | heads | the sums inside products; scale, masks, softmax and dropout of the scores | heads that do not divide over the ranks: refused |
//! | [`attention::CrossAttention`] | heads of keys and values, with the heads that share them | as above | `n_heads_kv` that do not divide over the ranks, or do not divide `n_heads`: refused |
//! | [`transformer::PositionWiseFeedForward`] | hidden features | as its parts | fewer features than ranks: whole; activations with parameters (`PRelu`, `SwiGlu`): refused, as Burn's layer neither trains nor records them |
//! | [`transformer::TransformerEncoder`], [`transformer::TransformerEncoderLayer`], [`transformer::TransformerDecoder`], [`transformer::TransformerDecoderLayer`] | as their parts | as their parts | caches hold this rank's heads |
//! | [`PositionalEncoding`], [`RotaryEncoding`] | nothing to cut | all | |
//! | [`activation::Activation`] | as what it chooses | all, of what has no parameters | |
//! | [`norm::Normalization`] | whole | all, and the parameters | statistics as [`BatchNorm`]'s, where it chooses that |
//! | [`Lstm`], [`BiLstm`], [`Gru`], [`BiGru`], [`Rnn`], [`BiRnn`] | whole | all but the products: what is added, activations, the state between steps | |
//! | losses, in [`loss`] | nothing to cut | all, and the result | |
//!
//! Layers that draw want the batch as dim 0: rows of a sample get a dim of their own. Under a colocated `split` the layers that
//! are cut are refused, as they take whole tensors. `BatchNorm` is `SyncBatchNorm` to who asks for its type's name, such as
//! adapters of PyTorch's names. Of [`Linear`] with `LinearLayout::Col` the weight is `[d_output, d_input]` while it runs, as in
//! records.
//!
//! Of more control over what is cut, and of fewer collectives, are the layers of [`crate`] with types that say how tensors are laid out.

pub mod activation;
pub mod attention;
pub mod cache;
pub mod conv;
mod embedding;
mod linear;
pub mod loss;
mod noise;
pub mod norm;
mod position;
pub mod recurrent;
pub mod transformer;

// As they are: what has no parameters and draws nothing.
pub use burn::nn::{
    Celu, CeluConfig, CosineSimilarity, CosineSimilarityConfig, Elu, EluConfig, Fold4d, Fold4dConfig, GLU, HardShrink,
    HardShrinkConfig, HardSigmoid, HardSigmoidConfig, Identity, Initializer, LeakyRelu, LeakyReluConfig, LinearLayout,
    LocalResponseNorm, LocalResponseNormConfig, PaddingConfig1d, PaddingConfig2d, PaddingConfig3d, PairwiseDistance,
    PairwiseDistanceConfig, PixelShuffle, PixelShuffleConfig, PixelUnshuffle, PixelUnshuffleConfig, Selu, Shrink,
    ShrinkConfig, SoftShrink, SoftShrinkConfig, Softplus, SoftplusConfig, Softsign, ThresholdedRelu,
    ThresholdedReluConfig, Unfold4d, Unfold4dConfig, generate_sinusoids, interpolate, pool,
};

pub use activation::{Gelu, PRelu, PReluConfig, Relu, Sigmoid, SwiGlu, SwiGluConfig, Tanh};
pub use embedding::{Embedding, EmbeddingConfig};
pub use linear::{Linear, LinearConfig};
pub use noise::{DropoutConfig, GaussianNoise, GaussianNoiseConfig};
pub use norm::{
    BatchNorm, BatchNormConfig, BatchStatistics, GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig,
    LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig,
};
pub use position::{PositionalEncoding, PositionalEncodingConfig, RotaryEncoding, RotaryEncodingConfig};
pub use recurrent::{
    BiGru, BiGruConfig, BiLstm, BiLstmConfig, BiRnn, BiRnnConfig, GateController, Gru, GruConfig, Lstm, LstmConfig,
    LstmState, OptionalInitialLstmState, Rnn, RnnConfig, RnnState,
};

/// An LSTM, by the path that Burn has for it.
pub mod lstm {
    pub use crate::nn::recurrent::{BiLstm, BiLstmConfig, Lstm, LstmConfig, LstmState, OptionalInitialLstmState};
}

/// A GRU, by the path that Burn has for it.
pub mod gru {
    pub use crate::nn::recurrent::{BiGru, BiGruConfig, Gru, GruConfig};
}

/// A plain recurrent layer, by the path that Burn has for it.
pub mod basic {
    pub use crate::nn::recurrent::{BiRnn, BiRnnConfig, Rnn, RnnConfig, RnnState};
}

pub use crate::dropout::Dropout;
