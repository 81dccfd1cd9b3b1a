//! What the user says about a mixture of experts.

use burn::config::Config;
use burn::nn::Initializer;
use epl_core::Context;

use super::gate::{Balance, Capacity, Gate};
use crate::activation::Activation;
use crate::mlp::ParallelMlpConfig;

/// Configuration to create a [`Moe`](super::Moe) layer using the [init function](MoeConfig::init).
#[derive(Config, Debug)]
pub struct MoeConfig {
    /// The width of the tokens.
    pub d_model: usize,
    /// The width inside an expert.
    pub d_ff: usize,
    /// How many experts there are. The size of the expert axis must divide it.
    pub experts: usize,
    /// How many experts a token is sent to.
    #[config(default = "Gate::Switch")]
    pub gate: Gate,
    /// How many tokens of a sequence an expert takes.
    #[config(default = "Capacity::Factor { train: 1.25, eval: 2.0 }")]
    pub capacity: Capacity,
    /// Over which tokens the load-balancing loss takes its means.
    #[config(default = "Balance::Sequences")]
    pub balance: Balance,
    /// How far after each step the bias of an expert moves that is asked too little or too often; 0.001 in DeepSeek-V3. Default:
    /// there is none
    pub bias_rate: Option<f64>,
    /// The width of a network beside the experts, of their form, that all tokens are sent to, as in DeepSeekMoE (Dai et al.,
    /// 2024, [arXiv:2401.06066](https://arxiv.org/abs/2401.06066)). Default: none
    pub shared: Option<usize>,
    /// While training, the router reads its input times noise in `[1 - jitter, 1 + jitter)`.
    #[config(default = 0.0)]
    pub jitter: f64,
    /// The function inside an expert.
    #[config(default = "Activation::Relu")]
    pub activation: Activation,
    /// Whether the function's output is multiplied by a second product of the input.
    #[config(default = false)]
    pub gated: bool,
    /// The probability with which hidden features of an expert are dropped in training.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// Whether padding is routed, takes places and counts in the losses, as in Hugging Face's Switch
    /// Transformers. What is dropped then depends on the padded length, hence on the cut of the batch.
    #[config(default = false)]
    pub route_padding: bool,
    /// How the router gets its first values; otherwise as [`fan_in_normal`](Self::fan_in_normal).
    pub router_initializer: Option<Initializer>,
    /// How the products into the experts get their first values; otherwise as
    /// [`fan_in_normal`](Self::fan_in_normal). Fans are those of one expert.
    pub initializer: Option<Initializer>,
    /// How the products out of the experts get their first values; otherwise as
    /// [`fan_in_normal`](Self::fan_in_normal). Fans are those of one expert.
    pub output_initializer: Option<Initializer>,
}

impl MoeConfig {
    /// Normal with standard deviation 1 / √fan-in, as in T5.
    pub fn fan_in_normal(fan_in: usize) -> Initializer {
        Initializer::Normal { mean: 0.0, std: 1.0 / (fan_in as f64).sqrt() }
    }

    /// The network that all tokens are sent to, of so many hidden features.
    pub(super) fn shared_network(&self, width: usize) -> ParallelMlpConfig {
        let or_normal =
            |given: &Option<Initializer>, fan_in| given.clone().unwrap_or_else(|| Self::fan_in_normal(fan_in));
        ParallelMlpConfig::new(self.d_model, width)
            .with_activation(self.activation)
            .with_gated(self.gated)
            .with_bias(false)
            .with_dropout(self.dropout)
            .with_initializer(or_normal(&self.initializer, self.d_model))
            .with_output_initializer(Some(or_normal(&self.output_initializer, width)))
    }

    /// What is wrong with the configuration on this mesh, if anything.
    pub(super) fn fault(&self, context: &Context) -> Option<String> {
        let Self { d_model, d_ff, experts, gate, jitter, .. } = *self;
        let expert_ranks = context.expert().size();
        if d_model == 0 || d_ff == 0 {
            Some(format!("d_model is {d_model} and d_ff {d_ff}; both must be at least 1"))
        } else if gate.choices() == 0 || self.shared == Some(0) {
            let (experts, shared) = (gate.choices(), self.shared);
            Some(format!(
                "a token is sent to {experts} experts, and the shared width is {shared:?}; both must be at least 1"
            ))
        } else if experts < gate.choices() {
            Some(format!("{experts} experts, but the gate {gate:?} sends a token to {}", gate.choices()))
        } else if !experts.is_multiple_of(expert_ranks) {
            Some(format!(
                "{experts} experts cannot be divided evenly over {expert_ranks} expert ranks; choose an expert \
                 axis that divides {experts}, or a multiple of {expert_ranks} experts"
            ))
        } else if self.bias_rate.is_some() && gate == Gate::Top2 {
            let remedy = "use Gate::TopK { experts: 2, renormalise: true }";
            Some(format!("a bias counts all choices, of which Gate::Top2 balances the first: {remedy}"))
        } else if let Some(rate) = self.bias_rate.filter(|rate| !rate.is_finite() || *rate <= 0.0) {
            Some(format!("the bias of experts moves by {rate} a step; it should be above 0, or leave it out"))
        } else if !(0.0..1.0).contains(&jitter) {
            Some(format!("jitter {jitter} is not in [0, 1)"))
        } else {
            self.capacity.fault()
        }
    }
}
