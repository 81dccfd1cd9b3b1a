//! Layers whose parameters may be split over ranks, in the dialect of Burn.
//!
//! A layer is made by `XConfig::new(..).with_*(..).init(&place)` and used by `forward`. Its public face takes and
//! returns ordinary tensors, which are replicated over the tensor axis; a tensor that is split, or must not be used
//! as it is, has a type that says so ([`epl_comm::Split`], [`epl_comm::Copied`]). On one rank every layer is an
//! ordinary Burn layer, and on several it computes the same numbers.
//!
//! | layer | what a rank of the tensor axis holds |
//! |---|---|
//! | [`Dropout`], [`Activation`] | nothing |
//! | [`RmsNorm`], [`LayerNorm`], [`Norm`], [`SyncBatchNorm`], [`ReplicatedLinear`], [`ReplicatedConv2d`] | the whole |
//! | [`SplitLinear`] | columns, or rows |
//! | [`SplitConv2d`] | output channels, or input channels |
//! | [`SplitEmbedding`] | rows of the vocabulary, which are columns of a tied head |
//! | [`SplitClassifier`] | classes; behind a [`Bridge`] where the ranks run different rows |
//! | [`MultiHeadAttention`], [`RelativeBias`] | heads |
//! | [`ParallelMlp`] | hidden features |
//! | [`Moe`] | hidden features; of the expert axis: experts |
//! | [`TransformerLayer`] | what its parts hold |
//! | [`SplitCrossEntropy`], [`split_argmax`], [`split_top_k`] | logits of its classes |
//!
//! A tensor that lies on several axes at once is a [`GlobalTensor`].
//!
//! ```
//! use burn::tensor::Tensor;
//! use epl_core::testing;
//! use epl_modules::{LinearCut, SplitLinearConfig};
//!
//! // Two ranks of the tensor axis: each holds half of the hidden features.
//! testing::run((1, 2, 1), |epl| {
//!     let up = SplitLinearConfig::new(8, 32).init(&epl.place().child("up"));
//!     let down = SplitLinearConfig::new(32, 8).with_cut(LinearCut::Row).init(&epl.place().child("down"));
//!     let hidden = up.forward(Tensor::<2>::ones([4, 8], epl.place().device())); // Split<2>
//!     assert_eq!(hidden.size(), 32);
//!     let output: Tensor<2> = down.forward(hidden); // one all-reduce
//!     assert_eq!(output.dims(), [4, 8]);
//!     Ok(())
//! });
//! ```
//!
//! Burn's `init` and `forward` return no `Result`; where ours list errors, they unwind with an
//! [`epl_comm::Error`], which [`epl_comm::catch`] turns into an `Err` at the edge of the launch or the step.
#![warn(missing_docs)]

mod invalid;
mod placement;
mod host;
pub mod random;
pub mod global;
pub mod activation;
pub mod dropout;
pub mod norm;
pub mod linear;
pub mod conv;
pub mod embedding;
pub mod cross_entropy;
pub mod argmax;
pub mod top_k;
pub mod bridge;
pub mod classifier;
pub mod attention;
pub mod mlp;
pub mod moe;
pub mod transformer;

pub use activation::Activation;
pub use argmax::split_argmax;
pub use attention::{
    AttentionCache, AttentionInput, MultiHeadAttention, MultiHeadAttentionConfig, RelativeBias, RelativeBiasConfig,
};
pub use bridge::{Bridge, Crossing};
pub use classifier::{SplitClassifier, SplitClassifierConfig};
pub use conv::{ChannelCut, ReplicatedConv2d, ReplicatedConv2dConfig, SplitConv2d, SplitConv2dConfig, SplitConvInput};
pub use cross_entropy::{SplitCrossEntropy, SplitCrossEntropyConfig, token_weight};
pub use dropout::{Dropout, DropoutConfig};
pub use embedding::{SplitEmbedding, SplitEmbeddingConfig};
pub use global::{GlobalTensor, Layout, Placement, Sbp};
pub use linear::{
    LinearCut, Operand, ReplicatedLinear, ReplicatedLinearConfig, SplitInput, SplitLinear, SplitLinearConfig,
};
pub use mlp::{ParallelMlp, ParallelMlpConfig};
pub use moe::{Capacity, Gate, Moe, MoeConfig, MoeOutput, RouterLosses, TokenMask};
pub use norm::{
    BatchStatistics, LayerNorm, LayerNormConfig, Norm, NormConfig, NormKind, RmsNorm, RmsNormConfig, SyncBatchNorm,
    SyncBatchNormConfig,
};
pub use top_k::{split_equal, split_in_top_k, split_top_k};
pub use transformer::{
    LayerExpertsConfig, NormOrder, TransformerCache, TransformerInput, TransformerLayer, TransformerLayerConfig,
    TransformerOutput,
};
