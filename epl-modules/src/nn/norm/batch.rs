//! What a batch norm is made with.

use burn::config::Config;
use epl_core::Place;

use crate::norm::{BatchStatistics, SyncBatchNorm, SyncBatchNormConfig};

/// Burn's `BatchNorm`: a [`SyncBatchNorm`] that keeps Burn's running variance, of Σ (x − mean)² / n.
pub type BatchNorm = SyncBatchNorm;

/// Configuration to create a [`BatchNorm`] layer using the [init function](BatchNormConfig::init).
#[derive(Config, Debug)]
pub struct BatchNormConfig {
    /// The number of channels. Must be greater than zero.
    pub num_features: usize,
    /// A finite, positive value required for numerical stability. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// How much of the running statistics a batch replaces, in `[0, 1]`. Default: 0.1
    #[config(default = 0.1)]
    pub momentum: f64,
    /// Over which rows mean and variance are taken: of all replicas, or of each. None: of all
    pub statistics: Option<BatchStatistics>,
}

impl BatchNormConfig {
    /// Initializes a new [`BatchNorm`] layer.
    ///
    /// # Errors
    ///
    /// As [`SyncBatchNormConfig::init`].
    pub fn init(&self, place: &Place) -> BatchNorm {
        SyncBatchNormConfig::new(self.num_features)
            .with_epsilon(self.epsilon)
            .with_momentum(self.momentum)
            .with_statistics(self.statistics.unwrap_or(BatchStatistics::Global))
            .with_unbiased(false)
            .init(place)
    }
}
