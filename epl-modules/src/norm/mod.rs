//! Normalisation along the last dim, with closed-form gradients.
//!
//! Norms are replicated: inside a region that is split over the tensor axis every rank normalises the same
//! values. The formulas are computed in f32 at least.

mod layer_norm;
mod rms_norm;
mod kind;

pub use kind::{Norm, NormConfig, NormKind};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use rms_norm::{RmsNorm, RmsNormConfig};
