//! What the engine needs to know beside the plan.

use crate::config::{Config, ReduceMethod};

/// How the gradients of micro-batches and replicas are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GradientsReduce {
    /// The gradient of Σ sum ÷ Σ weight over all micro-batches and replicas.
    #[default]
    Mean,
    /// The gradient of Σ sum, undivided.
    Sum,
}

/// Settings of an [`Engine`](super::Engine).
#[derive(Clone, Debug, Default)]
pub struct EngineSettings {
    /// The limit of the gradients' global norm; none: not clipped.
    pub clip_norm: Option<f64>,
    /// How gradients are combined.
    pub reduce: GradientsReduce,
}

impl EngineSettings {
    /// What the options `train.clip_norm` and `communication.gradients_reduce_method` say.
    pub fn from_config(config: &Config) -> Self {
        let reduce = match config.communication.gradients_reduce_method {
            ReduceMethod::Mean => GradientsReduce::Mean,
            ReduceMethod::Sum => GradientsReduce::Sum,
        };
        Self { clip_norm: config.train.clip_norm, reduce }
    }
}
