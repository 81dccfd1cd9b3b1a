//! Layers whose parameters may be split over ranks, in the dialect of Burn.
//!
//! A model that is written with `burn::nn` takes its layers from [`nn`], which has the same names with whole inputs and
//! outputs. The layers below say by types how tensors are laid out, and need fewer collectives.
//!
//! A layer is made by `XConfig::new(..).with_*(..).init(&place)` and used by `forward`. Its public face takes and
//! returns ordinary tensors, which are replicated over the tensor axis; a tensor that is split, or must not be used
//! as it is, has a type that says so ([`epl_comm::Split`], [`epl_comm::Copied`]). On one rank every layer is an
//! ordinary Burn layer, and on several it computes the same numbers.
//!
//! | layer | what a rank of the tensor axis holds |
//! |---|---|
//! | [`Dropout`], [`DropPath`], [`Activation`], [`softcap()`], [`residual()`] | nothing |
//! | [`RmsNorm`], [`LayerNorm`], [`Norm`], [`SyncBatchNorm`], [`ReplicatedLinear`], [`ReplicatedConv2d`] | the whole |
//! | [`SplitLinear`] | columns, or rows |
//! | [`SplitConv2d`] | output channels, or input channels |
//! | [`SplitEmbedding`] | rows of the vocabulary, which are columns of a tied head |
//! | [`SplitClassifier`] | classes; behind a [`Bridge`] where the ranks run different rows |
//! | [`MultiHeadAttention`], [`RelativeBias`], [`WindowBias`] | heads |
//! | [`ParallelMlp`] | hidden features |
//! | [`Moe`] | hidden features; of the expert axis: experts |
//! | [`TransformerLayer`] | what its parts hold |
//! | [`SplitCrossEntropy`], [`split_argmax`], [`split_top_k`] | logits of its classes |
//!
//! A tensor that lies on several axes at once is a [`GlobalTensor`].
//!
//! # In 16 bits
//!
//! Under mixed precision activations and parameters have 16 bits (half: f16 or bf16), but for the parameters that a layer
//! declares by [`Place::full_precision`](epl_core::Place::full_precision). What is computed in f32 is rounded once, at the
//! end. `tests/modules/f32/precision.rs` holds each line of the table.
//!
//! | layer | parameters | output | computed in f32 |
//! |---|---|---|---|
//! | [`ReplicatedLinear`], [`SplitLinear`] | half | half | the sums inside a product, and over ranks |
//! | [`ReplicatedConv2d`], [`SplitConv2d`] | half | half | the same; on the host all |
//! | [`SplitEmbedding`], [`lookup`](embedding::lookup) | half | half | the sums over positions in the gradient |
//! | [`RmsNorm`], [`LayerNorm`], [`SyncBatchNorm`] | f32, and the running statistics | that of the input | all |
//! | [`Dropout`], [`DropPath`] | | that of the input | all; the mask has no type |
//! | [`Activation`], [`softcap()`] | | that of the input | all |
//! | [`MultiHeadAttention`] | half, norms and scales of heads f32 | half | norms, cosines, rotation by positions, each rounded once; scale, softcap, bias, masks, softmax, dropout; not q kᵀ and the product with v |
//! | [`RelativeBias`], [`WindowBias`] | f32 | f32 | all; attention takes a bias of any type |
//! | [`residual()`] | | that of the input | each sum, rounded once |
//! | [`ParallelMlp`] | half | half | as its parts |
//! | [`Moe`] | experts half, router f32 | that of the input | logits, probabilities, both losses, the weighted sum of experts, on the host the sums over a token's experts in the gradient; not their products |
//! | [`TransformerLayer`] | as its parts | half | as its parts |
//! | [`SplitCrossEntropy`] | | f32 | all, and the gradient of the logits |
//! | [`SplitClassifier`] | half | loss f32, logits half | the loss |
//! | [`split_argmax`], [`split_top_k`], [`split_in_top_k`] | | ids | nothing is computed |
//! | [`Bridge`], [`GlobalTensor`] | | that of the input | the sums over ranks |
//!
//! A product brings its input to the type of its weight, so that a batch in f32 may enter a layer in half, and the result
//! of a layer that is kept in f32 is f32. Of equal logits in half there are more than in f32: the lowest id counts.
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
//!
//! # Features
//!
#![doc = document_features::document_features!()]
#![warn(missing_docs)]

mod invalid;
mod placement;
mod host;
pub mod random;
mod draws;
mod over_rows;
mod running;
mod of_epl;
pub mod global;
pub mod activation;
pub mod softcap;
pub mod dropout;
mod drop_path;
mod trunk;
mod residual;
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
pub mod nn;

pub use activation::Activation;
pub use argmax::split_argmax;
pub use attention::{
    AttentionCache, AttentionInput, DistanceNetwork, MultiHeadAttention, MultiHeadAttentionConfig, RelativeBias,
    RelativeBiasConfig, RotaryConfig, RotaryScaling, WindowBias, WindowBiasConfig, Windows,
};
pub use bridge::{Bridge, Crossing};
pub use classifier::{SplitClassifier, SplitClassifierConfig};
pub use conv::{ChannelCut, ReplicatedConv2d, ReplicatedConv2dConfig, SplitConv2d, SplitConv2dConfig, SplitConvInput};
pub use cross_entropy::{MixedTargets, SplitCrossEntropy, SplitCrossEntropyConfig, Targets, token_weight};
pub use drop_path::{DropPath, DropPathConfig};
pub use dropout::{Dropout, DropoutConfig};
pub use embedding::{SplitEmbedding, SplitEmbeddingConfig};
pub use global::{GlobalTensor, Layout, Placement, Sbp};
pub use linear::{
    LinearCut, Operand, ReplicatedLinear, ReplicatedLinearConfig, SplitInput, SplitLinear, SplitLinearConfig,
};
pub use mlp::{ParallelMlp, ParallelMlpConfig};
pub use moe::{Balance, Capacity, Gate, Moe, MoeConfig, MoeOutput, RouterLosses, TokenMask};
pub use norm::{
    BatchStatistics, LayerNorm, LayerNormConfig, Norm, NormConfig, NormKind, RmsNorm, RmsNormConfig, SyncBatchNorm,
    SyncBatchNormConfig,
};
pub use residual::residual;
pub use softcap::softcap;
pub use top_k::{split_equal, split_in_top_k, split_top_k};
pub use transformer::{
    LayerExpertsConfig, NormOrder, TransformerCache, TransformerInput, TransformerLayer, TransformerLayerConfig,
    TransformerOutput,
};
