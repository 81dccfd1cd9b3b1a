//! An optimizer from the settings of Burn's configuration.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::optimizer::HostOptimizer;
use super::rules::{Adam, AdamW, BertAdam, HostRule, Lion, Momentum, RmsProp, Sgd};
use crate::error::{Error, Result};

/// Whether an optimizer can update in one pass.
#[derive(Clone, Debug)]
pub enum OnePass {
    /// It can.
    Yes(HostOptimizer),
    /// It cannot, for this reason; Burn's own can update tensors in host memory.
    No(String),
}

impl OnePass {
    /// Of an optimizer of this name that has no rule for it.
    pub(crate) fn unknown(name: &str) -> Self {
        Self::refused(name, "its update is not among those that are written for one pass")
    }

    fn refused(name: &str, reason: &str) -> Self {
        Self::No(format!(
            "{name} cannot update in one pass: {reason}; Adam, AdamW, BertAdam, Lion, RMSProp and SGD can, without amsgrad, \
             cautious weight decay and clipping of single parameters"
        ))
    }
}

impl HostOptimizer {
    /// The optimizer of this name (`OptimizerConfig::NAME`) with the settings
    /// that Burn's configuration serializes to.
    ///
    /// # Errors
    ///
    /// When the settings are not those of Burn's configuration of this name.
    pub fn from_settings(name: &str, settings: &Value) -> Result<OnePass> {
        let found = match name {
            "Adam" => read::<AdamSettings>(name, settings)?.kind(),
            "AdamW" => read::<AdamWSettings>(name, settings)?.kind(),
            "BertAdam" => read::<BertAdamSettings>(name, settings)?.kind(),
            "Lion" => read::<LionSettings>(name, settings)?.kind(),
            "RMSProp" => read::<RmsPropSettings>(name, settings)?.kind(),
            "SGD" => read::<SgdSettings>(name, settings)?.kind(),
            "Adafactor" | "LAMB" | "Muon" => Err("it looks at whole tensors"),
            _ => return Ok(OnePass::unknown(name)),
        };
        Ok(match found {
            Ok(kind) => OnePass::Yes(Self { kind }),
            Err(reason) => OnePass::refused(name, reason),
        })
    }
}

fn read<S: DeserializeOwned>(name: &str, settings: &Value) -> Result<S> {
    S::deserialize(settings).map_err(|error| Error::invalid(format!("the settings of {name} cannot be used: {error}")))
}

type Found = Result<HostRule, &'static str>;

const AMSGRAD: &str = "amsgrad keeps a third moment";
const CAUTIOUS: &str = "cautious weight decay depends on the sign of each element";
const CLIPPING: &str = "its own clipping needs a parameter's norm first";

/// Refuses the first setting that is switched on.
fn refuse<const N: usize>(switched: [(bool, &'static str); N]) -> Result<(), &'static str> {
    switched.into_iter().find(|(on, _)| *on).map_or(Ok(()), |(_, reason)| Err(reason))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightDecaySettings {
    penalty: f32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdamSettings {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    amsgrad: bool,
    weight_decay: Option<WeightDecaySettings>,
    grad_clipping: Option<Value>,
}

impl AdamSettings {
    fn kind(self) -> Found {
        refuse([(self.amsgrad, AMSGRAD), (self.grad_clipping.is_some(), CLIPPING)])?;
        let penalty = self.weight_decay.map(|decay| decay.penalty);
        Ok(HostRule::Adam(Adam { beta_1: self.beta_1, beta_2: self.beta_2, epsilon: self.epsilon, penalty }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdamWSettings {
    beta_1: f32,
    beta_2: f32,
    epsilon: f32,
    weight_decay: f32,
    cautious_weight_decay: bool,
    amsgrad: bool,
    grad_clipping: Option<Value>,
}

impl AdamWSettings {
    fn kind(self) -> Found {
        let clips = self.grad_clipping.is_some();
        refuse([(self.amsgrad, AMSGRAD), (self.cautious_weight_decay, CAUTIOUS), (clips, CLIPPING)])?;
        let Self { beta_1, beta_2, epsilon, weight_decay, .. } = self;
        Ok(HostRule::AdamW(AdamW { beta_1, beta_2, epsilon, weight_decay }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BertAdamSettings {
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
    weight_decay: f64,
}

impl BertAdamSettings {
    fn kind(self) -> Found {
        let Self { beta_1, beta_2, epsilon, weight_decay } = self;
        Ok(HostRule::BertAdam(BertAdam { beta_1, beta_2, epsilon, weight_decay }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LionSettings {
    beta_1: f32,
    beta_2: f32,
    weight_decay: f32,
    grad_clipping: Option<Value>,
}

impl LionSettings {
    fn kind(self) -> Found {
        refuse([(self.grad_clipping.is_some(), CLIPPING)])?;
        Ok(HostRule::Lion(Lion { beta_1: self.beta_1, beta_2: self.beta_2, weight_decay: self.weight_decay }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RmsPropSettings {
    alpha: f32,
    momentum: f32,
    epsilon: f32,
    centered: bool,
    weight_decay: Option<WeightDecaySettings>,
    grad_clipping: Option<Value>,
}

impl RmsPropSettings {
    fn kind(self) -> Found {
        refuse([(self.grad_clipping.is_some(), CLIPPING)])?;
        let Self { alpha, epsilon, centered, .. } = self;
        let momentum = Some(self.momentum).filter(|momentum| *momentum > 0.0);
        let penalty = self.weight_decay.map(|decay| decay.penalty);
        Ok(HostRule::RmsProp(RmsProp { alpha, momentum, epsilon, centered, penalty }))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SgdSettings {
    weight_decay: Option<WeightDecaySettings>,
    momentum: Option<MomentumSettings>,
    gradient_clipping: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MomentumSettings {
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl SgdSettings {
    fn kind(self) -> Found {
        refuse([(self.gradient_clipping.is_some(), CLIPPING)])?;
        let momentum = self.momentum.map(|MomentumSettings { momentum, dampening, nesterov }| Momentum {
            factor: momentum as f32,
            dampening,
            nesterov,
        });
        Ok(HostRule::Sgd(Sgd { momentum, penalty: self.weight_decay.map(|decay| decay.penalty) }))
    }
}
