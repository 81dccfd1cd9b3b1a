//! The feed-forward network, or its experts, as a residual part of a block.

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::{Carry, CarryMapper, Place};
use epl_modules::moe::{Moe, MoeConfig, TokenMask};
use epl_modules::{Activation, Dropout, DropoutConfig, FeedForward, FeedForwardConfig, RmsNorm, RmsNormConfig};

use super::config::{T5Config, T5FeedForward, T5MoeConfig};

/// x + dropout(network(norm(x))).
#[derive(Module, Debug)]
pub struct FeedForwardPart {
    /// Normalises what enters.
    pub norm: RmsNorm,
    /// The network of a block without experts.
    pub dense: Option<FeedForward>,
    /// The networks of a block with experts.
    pub moe: Option<Moe>,
    dropout: Dropout,
}

/// The router's losses, each a sum over layers and rows.
#[derive(Clone, Debug)]
pub struct RouterLosses {
    /// The load balancing loss. Shape `[1]`.
    pub auxiliary: Tensor<1>,
    /// The z loss. Shape `[1]`.
    pub z: Tensor<1>,
}

impl RouterLosses {
    /// The sum of two layers' losses, if they have any.
    pub fn add(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) => Some(Self { auxiliary: a.auxiliary + b.auxiliary, z: a.z + b.z }),
            (a, b) => a.or(b),
        }
    }
}

impl Carry for RouterLosses {
    fn map<M: CarryMapper>(self, mapper: &mut M) -> Self {
        Self { auxiliary: mapper.float(self.auxiliary), z: mapper.float(self.z) }
    }
}

impl FeedForwardPart {
    /// Makes the part, with experts if `moe` says so.
    pub fn new(config: &T5Config, moe: Option<&T5MoeConfig>, place: &Place) -> Self {
        let dense = || dense(config).init(&place.child("dense"));
        Self {
            norm: RmsNormConfig::new(config.d_model).with_epsilon(config.epsilon).init(&place.child("norm")),
            dense: moe.is_none().then(dense),
            moe: moe.map(|moe| experts(config, moe).init(&place.child("moe"))),
            dropout: DropoutConfig::new(config.dropout).init(place),
        }
    }

    /// Applies the part. `real` says which tokens experts are chosen for.
    ///
    /// # Shapes
    ///
    /// - hidden, output: `[rows, positions, d_model]`
    pub fn forward(&self, hidden: Tensor<3>, real: &TokenMask) -> (Tensor<3>, Option<RouterLosses>) {
        let mut states = self.norm.forward(hidden.clone());
        let mut losses = None;
        if let Some(dense) = &self.dense {
            states = dense.forward(states);
        }
        if let Some(moe) = &self.moe {
            let output = moe.forward_masked(states, real);
            states = output.hidden;
            losses = Some(RouterLosses { auxiliary: output.auxiliary, z: output.z });
        }
        (hidden + self.dropout.forward(states), losses)
    }
}

/// The function inside a network, and whether a second product multiplies it.
fn activation(config: &T5Config) -> (Activation, bool) {
    match config.feed_forward {
        T5FeedForward::Relu => (Activation::Relu, false),
        T5FeedForward::GatedGelu => (Activation::GeluNew, true),
    }
}

fn dense(config: &T5Config) -> FeedForwardConfig {
    let normal = |fan: usize| Initializer::Normal { mean: 0.0, std: (fan as f64).powf(-0.5) };
    let (activation, gated) = activation(config);
    FeedForwardConfig::new(config.d_model, config.d_ff)
        .with_activation(activation)
        .with_gated(gated)
        .with_bias(false)
        .with_dropout(config.dropout)
        .with_initializer(normal(config.d_model))
        .with_output_initializer(Some(normal(config.d_ff)))
}

fn experts(config: &T5Config, moe: &T5MoeConfig) -> MoeConfig {
    let (activation, gated) = activation(config);
    MoeConfig::new(config.d_model, config.d_ff, moe.experts)
        .with_gate(moe.gate)
        .with_capacity(moe.capacity)
        .with_jitter(moe.jitter)
        .with_activation(activation)
        .with_gated(gated)
        .with_dropout(config.dropout)
        .with_route_padding(moe.route_padding)
}
