//! An optimizer of any type.

use std::sync::Arc;

use burn::optim::{DynOptimizer, Optimizer};
use burn::tensor::{DType, Device, Tensor};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::memory::OptimizerState;
use crate::offload::{HostOptimizer, OnePass};

/// An optimizer, and what it was made with.
#[derive(Clone)]
pub struct Variant {
    pub(super) optimizer: Arc<dyn DynOptimizer>,
    pub(crate) settings: Value,
    pub(crate) one_pass: OnePass,
    /// What it declares to keep of a parameter, if it does.
    pub(super) state: Option<OptimizerState>,
}

impl std::fmt::Debug for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Variant").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Variant {
    /// An optimizer of this name, and what its configuration serializes to.
    ///
    /// # Errors
    ///
    /// When it clips each parameter by itself.
    pub fn new(name: &str, optimizer: impl Optimizer, settings: Value) -> Result<Self> {
        // Burn's optimizers have it under one of these names.
        if ["grad_clipping", "gradient_clipping"].iter().any(|name| !settings[*name].is_null()) {
            return Err(Error::invalid(format!(
                "{name}Config has `grad_clipping`, which clips each parameter by its own norm before it is reduced; leave \
                 it out and set `train.clip_norm`, the limit of the global norm"
            )));
        }
        Ok(Self { optimizer: Arc::new(optimizer), settings, one_pass: OnePass::unknown(name), state: None })
    }

    /// What updates this parameter in one pass: of Flex, in f32 or f64.
    pub(super) fn one_pass_on<const D: usize>(&self, value: &Tensor<D>) -> Option<HostOptimizer> {
        match &self.one_pass {
            OnePass::Yes(optimizer) if matches!(value.dtype(), DType::F32 | DType::F64) => {
                (value.device() == Device::flex()).then_some(*optimizer)
            }
            _ => None,
        }
    }

    /// One that updates in one pass over memory, where it can: to the bit as the optimizer does.
    #[must_use]
    pub(super) fn with_one_pass(self, one_pass: OnePass) -> Self {
        Self { one_pass, ..self }
    }

    /// One that keeps so much of a parameter; none: it does not say.
    #[must_use]
    pub(super) fn with_state(self, state: Option<OptimizerState>) -> Self {
        Self { state, ..self }
    }
}
