//! Which of Burn's optimizers the engine can drive, and how.
//!
//! An element-wise optimizer updates each element from its own gradient and state, so it may run on slices. One
//! that looks at a whole tensor (factored moments, a norm, an orthogonalisation) would compute something else on a
//! slice, and is refused for parameters that are divided.
//!
//! - [`loss_scale`]: the factor on the loss under mixed precision.

pub mod loss_scale;

use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LionConfig, ModuleOptimizer,
    RmsPropConfig, SgdConfig,
};

use serde::Serialize;

pub use loss_scale::{LossScaleState, LossScaler};

use crate::error::{Error, Result};
use crate::plan::Plan;

/// A configuration of an optimizer that the engine can drive; what it serializes to is kept in checkpoints.
pub trait OptimizerConfig: Serialize {
    /// The optimizer's name in messages.
    const NAME: &'static str;
    /// Whether each element is updated from its own gradient and state alone.
    const ELEMENT_WISE: bool;

    /// Builds the optimizer.
    fn build(&self) -> ModuleOptimizer;
}

macro_rules! optimizers {
    ($($config:ident, $name:literal, $element_wise:literal;)*) => {$(
        impl OptimizerConfig for $config {
            const NAME: &'static str = $name;
            const ELEMENT_WISE: bool = $element_wise;

            fn build(&self) -> ModuleOptimizer {
                self.init()
            }
        }
    )*};
}

optimizers! {
    AdamConfig, "Adam", true;
    AdamWConfig, "AdamW", true;
    AdaGradConfig, "AdaGrad", true;
    AdanConfig, "Adan", true;
    LionConfig, "Lion", true;
    RmsPropConfig, "RMSProp", true;
    SgdConfig, "SGD", true;
    AdafactorConfig, "Adafactor", false;
    LambConfig, "LAMB", false;
}

/// Builds the optimizer; refuses what would depend on the layout.
pub(crate) fn build<O: OptimizerConfig>(config: &O, plan: &Plan) -> Result<ModuleOptimizer> {
    let optimizer = config.build();
    if optimizer.has_gradient_clipping() {
        return Err(Error::invalid(format!(
            "{}Config has `grad_clipping`, which clips each parameter by its own norm before it is reduced; leave it \
             out and set `train.clip_norm`, the limit of the global norm",
            O::NAME
        )));
    }
    match plan.records.iter().find(|record| !record.cuts.is_empty()) {
        Some(record) if !O::ELEMENT_WISE => Err(Error::Parameter {
            name: record.name.clone(),
            reason: format!(
                "{} looks at whole tensors, and this rank holds {:?} of {:?}; use an element-wise optimizer such as \
                 AdamW, or do not divide the parameter",
                O::NAME,
                record.shape(),
                record.global_shape
            ),
        }),
        _ => Ok(optimizer),
    }
}
