//! Adam without bias correction, as BERT was trained with it.

use burn::config::Config;
use burn::optim::{AdamWState, AdaptiveMomentumState, LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};

/// Adam without bias correction, with decoupled weight decay: BERT's `AdamWeightDecayOptimizer`.
///
/// With rate r, of gradient g and parameter p:
///
/// ```text
/// m ← β₁ m + (1 − β₁) g
/// v ← β₂ v + (1 − β₂) g²
/// p ← p − r (m ÷ (√v + ε) + λ p)
/// ```
///
/// With bias correction it is [`AdamWConfig`](burn::optim::AdamWConfig). BERT decays no bias and no norm:
///
/// ```
/// use epl_core::optim::{BertAdamConfig, ParamGroups};
///
/// let optimizer = ParamGroups::new(BertAdamConfig::new())
///     .group(["**.bias", "**.norm"], |group| group.with_weight_decay(0.0));
/// # let _ = optimizer;
/// ```
///
/// Devlin et al., 2018, "BERT: Pre-training of Deep Bidirectional Transformers", §A.2; the update is that of `optimization.py`
/// of its published code.
#[derive(Config, Debug)]
pub struct BertAdamConfig {
    /// What is kept of the mean of gradients.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// What is kept of the mean of squares.
    #[config(default = 0.999)]
    pub beta_2: f64,
    /// What is added to the root of the mean of squares.
    #[config(default = 1e-6)]
    pub epsilon: f64,
    /// λ.
    #[config(default = 0.01)]
    pub weight_decay: f64,
}

impl BertAdamConfig {
    /// The optimizer.
    pub fn build(&self) -> BertAdam {
        BertAdam { config: self.clone() }
    }
}

/// The optimizer of a [`BertAdamConfig`].
#[derive(Clone, Debug)]
pub struct BertAdam {
    config: BertAdamConfig,
}

impl Optimizer for BertAdam {
    // The record is AdamW's, which counts steps, too.
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let BertAdamConfig { beta_1, beta_2, epsilon, weight_decay } = &self.config;
        let new_1 = gradient.clone().mul_scalar(1.0 - beta_1);
        let new_2 = gradient.square().mul_scalar(1.0 - beta_2);
        let momentum = match state.map(|state| state.momentum) {
            None => AdaptiveMomentumState::new(1, new_1, new_2),
            Some(before) => AdaptiveMomentumState {
                time: before.time + 1,
                moment_1: before.moment_1.mul_scalar(*beta_1).add(new_1),
                moment_2: before.moment_2.mul_scalar(*beta_2).add(new_2),
                max_moment_2: None,
            },
        };
        let delta = momentum.moment_1.clone().div(momentum.moment_2.clone().sqrt().add_scalar(*epsilon));
        let kept = 1.0 - rate * weight_decay;
        // A product with one changes no bit.
        let tensor = if kept == 1.0 { tensor } else { tensor.mul_scalar(kept) };
        (tensor - delta.mul_scalar(rate), Some(AdamWState::new(momentum)))
    }

    fn to_device<const D: usize>(mut state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        state.momentum = state.momentum.to_device(device);
        state
    }
}
