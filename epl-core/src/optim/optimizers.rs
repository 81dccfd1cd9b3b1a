//! Which of Burn's optimizers the engine can drive.

use burn::optim::decay::WeightDecayConfig;
use burn::optim::{
    AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LionConfig, Optimizer,
    RmsPropConfig, SgdConfig,
};
use serde::Serialize;
use serde_json::Value;

use super::bert_adam::BertAdamConfig;
use super::group_settings::GroupSettings;
use super::variant::Variant;
use crate::error::{Error, Result};
use crate::json::json;
use crate::memory::OptimizerState;
use crate::offload::{HostOptimizer, OnePass};
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

    /// The same with another weight decay, 0 for none; nothing where it has no such setting, and a parameter group that says
    /// one is refused.
    fn with_decay(&self, weight_decay: f64) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = weight_decay;
        None
    }

    /// Whether it can update in one pass over memory, by what it serializes to: to the bit as what it [builds](Self::build)
    /// does. One of your own cannot.
    fn one_pass(settings: &Value) -> OnePass {
        let _ = settings;
        OnePass::unknown(Self::NAME)
    }

    /// The parameter groups that it tells apart, in order. Those of [`ParamGroups`](super::ParamGroups); others have none.
    ///
    /// # Errors
    ///
    /// When settings cannot be kept in a checkpoint.
    fn groups(&self) -> Result<Vec<GroupSettings>> {
        Ok(Vec::new())
    }

    /// What updates some parameters: with the own settings of the group of this number, and with another weight decay, where
    /// they are said. [`ParamGroups`](super::ParamGroups) asks the optimizer that it holds.
    ///
    /// # Errors
    ///
    /// When it has no weight decay, and one is said.
    fn variant(&self, own: Option<usize>, weight_decay: Option<f64>) -> Result<Variant>
    where
        Self: Sized,
    {
        let _ = own;
        let Some(weight_decay) = weight_decay else {
            let settings = json("optimizer's settings", self)?;
            let one_pass = Self::one_pass(&settings);
            let variant = Variant::new(Self::NAME, self.build(), settings)?.with_one_pass(one_pass);
            // One that declares no state is counted by what it has.
            return Ok(variant.with_state(self.state().ok()));
        };
        match self.with_decay(weight_decay) {
            Some(decayed) => decayed.variant(None, None),
            None => Err(Error::invalid(format!(
                "{} has no weight decay that a parameter group could change; leave it out of the group, or implement \
                 `OptimizerConfig::with_decay`",
                Self::NAME
            ))),
        }
    }
}

macro_rules! optimizers {
    ($($config:ident, $name:literal, $element_wise:literal, $decay:expr, $state:expr;)*) => {$(
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

            fn one_pass(settings: &Value) -> OnePass {
                // Settings that are not understood are for Burn's own.
                let read = HostOptimizer::from_settings($name, settings);
                read.unwrap_or_else(|error| OnePass::No(error.to_string()))
            }

            fn with_decay(&self, weight_decay: f64) -> Option<Self> {
                Some(self.clone().with_weight_decay($decay(weight_decay)))
            }
        }
    )*};
}

optimizers! {
    AdamConfig, "Adam", true, penalty, |said| adam(said);
    AdamWConfig, "AdamW", true, narrow, |said| adam(said);
    AdaGradConfig, "AdaGrad", true, penalty, |_| PerElement(1);
    AdanConfig, "Adan", true, narrow, |_| PerElement(4);
    BertAdamConfig, "BertAdam", true, f64::from, |_| PerElement(2);
    LionConfig, "Lion", true, narrow, |_| PerElement(1);
    RmsPropConfig, "RMSProp", true, penalty, |said| rms_prop(said);
    SgdConfig, "SGD", true, penalty, |said| PerElement(u64::from(!said["momentum"].is_null()));
    AdafactorConfig, "Adafactor", false, narrow, |_| OptimizerState::RowsAndColumns;
    LambConfig, "LAMB", false, narrow, |_| PerElement(2);
}

/// A weight decay that Burn adds to the gradient, if it is one.
fn penalty(weight_decay: f64) -> Option<WeightDecayConfig> {
    (weight_decay != 0.0).then(|| WeightDecayConfig::new(narrow(weight_decay)))
}

/// A weight decay in the type in which Burn has it.
fn narrow(weight_decay: f64) -> f32 {
    weight_decay as f32
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
