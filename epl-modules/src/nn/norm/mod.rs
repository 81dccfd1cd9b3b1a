//! Norms, and one that is chosen by its configuration: `burn::nn::norm`.

mod batch;
mod group;
mod normalization;

pub use batch::{BatchNorm, BatchNormConfig};
pub use burn::nn::norm::{LocalResponseNorm, LocalResponseNormConfig};
pub use group::{GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig};
pub use normalization::{Normalization, NormalizationConfig};

pub use crate::norm::{BatchStatistics, LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
