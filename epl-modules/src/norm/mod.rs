//! Normalisation, with closed-form gradients: along the last dim, or over the rows of a batch.
//!
//! - [`LayerNorm`], [`RmsNorm`]: along the last dim.
//! - [`SyncBatchNorm`]: over the rows of all replicas, channel by channel. `statistics` gathers mean and variance,
//!   `standardise` applies them.
//! - `gamma`: what the first two multiply by.
//!
//! Norms are replicated: inside a region that is split over the tensor axis every rank normalises the same
//! values. The formulas are computed in f32 at least.

mod gamma;
mod layer_norm;
mod rms_norm;
mod statistics;
mod standardise;
mod batch_norm;
mod kind;

pub use batch_norm::{BatchStatistics, SyncBatchNorm, SyncBatchNormConfig};
pub use kind::{Norm, NormConfig, NormKind};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use rms_norm::{RmsNorm, RmsNormConfig};
