//! Convolutions, whole or split by channels over the tensor axis.
//!
//! ```text
//! X copied ─ X * W₀ ─> Y split ─ σ ─> Y₀ * V₀ ─┐
//!            X * W₁ ─> Y split ─ σ ─> Y₁ * V₁ ─┴ partial ── all-reduce ──> Z replicated
//!        output channels                   input channels
//! ```

mod window;
mod on_host;
mod geometry;
mod replicated;
mod split;

pub(crate) use geometry::{
    check_channels, check_keeps_size, check_kernel, check_same_on_both_sides, default_initializer, type_inside,
};
pub(crate) use on_host::{conv1d, conv2d};
pub use replicated::{ReplicatedConv2d, ReplicatedConv2dConfig};
pub use split::{ChannelCut, SplitConv2d, SplitConv2dConfig, SplitConvInput};
