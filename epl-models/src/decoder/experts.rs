//! The experts of a decoder.

use burn::config::Config;
use epl_modules::{Balance, Capacity, Gate};

/// The experts of a [`DecoderConfig`](super::DecoderConfig): feed-forward networks of which each token is sent to some.
///
/// The defaults are Mixtral's: two of the experts in every layer, no token dropped.
#[derive(Config, Debug, PartialEq)]
pub struct DecoderExpertsConfig {
    /// Experts of a layer. The size of the expert axis must divide it.
    pub experts: usize,
    /// How a token chooses.
    #[config(default = "Gate::TopK { experts: 2, renormalise: true }")]
    pub gate: Gate,
    /// How many tokens of one sequence an expert takes.
    #[config(default = "Capacity::Unlimited")]
    pub capacity: Capacity,
    /// The width inside an expert. Default: the decoder's `d_ff`
    pub d_ff: Option<usize>,
    /// The width of a network beside the experts that all tokens are sent to. Default: none
    pub shared: Option<usize>,
    /// Layers, counted from 0, that have no experts but one dense network of width `d_ff`.
    #[config(default = "Vec::new()")]
    pub dense_layers: Vec<usize>,
    /// Over which tokens the load-balancing loss takes its means. Over each sequence it is the sum over layers, over the batch
    /// the mean over them.
    #[config(default = "Balance::Sequences")]
    pub balance: Balance,
    /// How far after each step the bias of an expert moves that is asked too little or too often, as
    /// [`MoeConfig::bias_rate`](epl_modules::MoeConfig::bias_rate); `auxiliary` may then be 0. Default: there is none
    pub bias_rate: Option<f64>,
    /// The factor of the load-balancing loss, which is 1 where experts are asked alike: `router_aux_loss_coef` of Hugging Face
    /// times the experts that a token is sent to.
    #[config(default = 0.01)]
    pub auxiliary: f64,
    /// The factor of the router's z loss.
    #[config(default = 0.0)]
    pub z: f64,
}

impl DecoderExpertsConfig {
    /// Whether a layer has experts.
    pub fn are_in(&self, layer: usize) -> bool {
        !self.dense_layers.contains(&layer)
    }

    /// What is wrong for so many layers, if anything. What else must fit, the layers say.
    pub(super) fn fault(&self, layers: usize) -> Option<String> {
        let factors = [("auxiliary", self.auxiliary), ("z", self.z)];
        if let Some((name, factor)) = factors.iter().find(|(_, factor)| !factor.is_finite() || *factor < 0.0) {
            return Some(format!("`experts.{name}` is {factor}; it should be at least 0"));
        }
        if let Some(layer) = self.dense_layers.iter().find(|layer| **layer >= layers) {
            return Some(format!("`experts.dense_layers` has {layer}; the layers are 0 to {}", layers - 1));
        }
        let has_none = (0..layers).all(|layer| !self.are_in(layer));
        has_none.then(|| format!("`experts.dense_layers` has all {layers} layers; leave `experts` out, or one layer"))
    }
}
