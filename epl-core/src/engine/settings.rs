//! What the engine needs to know beside the plan.

use super::compress::Compression;
use crate::config::{Config, ReduceMethod};

/// Settings of an [`Engine`](super::Engine).
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The limit of the gradients' global norm; none: not clipped.
    pub clip_norm: Option<f64>,
    /// How the gradients of micro-batches and replicas are combined.
    pub reduce: ReduceMethod,
    /// Micro-batches of a step of [`Engine::step_whole`](super::Engine::step_whole).
    pub num_micro_batch: usize,
    /// Reductions that may be in flight together.
    pub num_communicators: usize,
    /// Gradients in 16 bits on their way; none: in their own type.
    pub compression: Option<Compression>,
    /// Whether the first step compares its gradients with those computed without recomputation.
    pub check_recomputation: bool,
}

impl Default for EngineSettings {
    /// What the options say where nothing is given.
    fn default() -> Self {
        Self::from_config(&Config::new())
    }
}

impl EngineSettings {
    /// What the options `train.clip_norm`, `pipeline.num_micro_batch`, `communication.*` and
    /// `gradient_checkpoint.check_gradients` say.
    pub fn from_config(config: &Config) -> Self {
        let communication = &config.communication;
        Self {
            clip_norm: config.train.clip_norm,
            reduce: communication.gradients_reduce_method,
            num_micro_batch: config.pipeline.num_micro_batch,
            num_communicators: communication.num_communicators,
            compression: Compression::from_config(communication),
            check_recomputation: config.gradient_checkpoint.check_gradients,
        }
    }
}
