//! Which of Burn's optimizers the engine can drive, and how.
//!
//! An element-wise optimizer updates each element from its own gradient and state, so it may run on slices. One
//! that looks at a whole tensor (factored moments, a norm, an orthogonalisation) would compute something else on a
//! slice, and is refused for parameters that are divided.
//!
//! - [`loss_scale`]: the factor on the loss under mixed precision.
//! - `per_parameter`: an optimizer, and what it keeps of each parameter.

pub mod loss_scale;
mod per_parameter;

use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LionConfig, Optimizer,
    RmsPropConfig, SgdConfig,
};

use serde::Serialize;
use serde_json::Value;

pub use loss_scale::{LossScaleState, LossScaler};
pub(crate) use per_parameter::{PerParameter, StateField, StateFields};

use crate::error::{Error, Result};
use crate::json::json;
use crate::memory::OptimizerState;
use crate::plan::Plan;
use OptimizerState::PerElement;

/// A configuration of an optimizer that the engine can drive; what it serializes to is kept in checkpoints.
pub trait OptimizerConfig: Serialize {
    /// The optimizer's name in messages.
    const NAME: &'static str;
    /// Whether each element is updated from its own gradient and state alone.
    const ELEMENT_WISE: bool;

    /// Builds the optimizer, which updates one parameter after the other.
    fn build(&self) -> impl Optimizer;

    /// How many elements of state it keeps, for a memory estimate.
    ///
    /// # Errors
    ///
    /// When it does not say, or the configuration cannot be read.
    fn state(&self) -> Result<OptimizerState> {
        Err(Error::invalid(format!(
            "{} does not say how much state it keeps for a parameter; implement `OptimizerConfig::state` for it",
            Self::NAME
        )))
    }
}

macro_rules! optimizers {
    ($($config:ident, $name:literal, $element_wise:literal, $state:expr;)*) => {$(
        impl OptimizerConfig for $config {
            const NAME: &'static str = $name;
            const ELEMENT_WISE: bool = $element_wise;

            fn build(&self) -> impl Optimizer {
                // Burn's own of this name.
                Self::build(self)
            }

            fn state(&self) -> Result<OptimizerState> {
                let read: fn(&Value) -> OptimizerState = $state;
                Ok(read(&json("optimizer's settings", self)?))
            }
        }
    )*};
}

optimizers! {
    AdamConfig, "Adam", true, |said| adam(said);
    AdamWConfig, "AdamW", true, |said| adam(said);
    AdaGradConfig, "AdaGrad", true, |_| PerElement(1);
    AdanConfig, "Adan", true, |_| PerElement(4);
    LionConfig, "Lion", true, |_| PerElement(1);
    RmsPropConfig, "RMSProp", true, |said| rms_prop(said);
    SgdConfig, "SGD", true, |said| PerElement(u64::from(!said["momentum"].is_null()));
    AdafactorConfig, "Adafactor", false, |_| OptimizerState::RowsAndColumns;
    LambConfig, "LAMB", false, |_| PerElement(2);
}

/// Two moments, and the largest second one so far.
fn adam(said: &Value) -> OptimizerState {
    PerElement(2 + u64::from(said["amsgrad"] == true))
}

/// The mean square; centered, the mean and the difference, too; and the momentum.
fn rms_prop(said: &Value) -> OptimizerState {
    let has_momentum = said["momentum"].as_f64().is_some_and(|momentum| momentum > 0.0);
    PerElement(if said["centered"] == true { 3 } else { 1 } + u64::from(has_momentum))
}

/// Builds the optimizer; refuses what would depend on the layout.
pub(crate) fn build<O: OptimizerConfig>(config: &O, settings: &Value, plan: &Plan) -> Result<PerParameter> {
    // Burn's optimizers have it under one of these names.
    if ["grad_clipping", "gradient_clipping"].iter().any(|name| !settings[*name].is_null()) {
        return Err(Error::invalid(format!(
            "{}Config has `grad_clipping`, which clips each parameter by its own norm before it is reduced; leave it \
             out and set `train.clip_norm`, the limit of the global norm",
            O::NAME
        )));
    }
    match plan.records().iter().find(|record| !record.cuts.is_empty()) {
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
        _ => Ok(PerParameter::new(config.build())),
    }
}
