//! Losses of numbers and of distributions.

use burn::nn::loss::Reduction;
use burn::tensor::{AsIndex, Tensor};

plain! {
    /// The squared difference.
    MseLoss
}

raised! {
    MseLoss:
    forward<const D>(logits: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction<const D>(logits: Tensor<D>, targets: Tensor<D>) -> Tensor<D>;
}

configured! {
    /// A power of the difference.
    ///
    LpLoss, LpLossConfig() {
        /// The power, above zero.
        p: f64,
    }
}

impl LpLossConfig {
    /// The absolute difference.
    pub fn l1() -> LpLoss {
        Self::new(1.0).init()
    }

    /// The squared difference.
    pub fn l2() -> LpLoss {
        Self::new(2.0).init()
    }
}

raised! {
    LpLoss:
    forward<const D>(predictions: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction<const D>(predictions: Tensor<D>, targets: Tensor<D>) -> Tensor<D>;
    forward_reduce_dims<const D>(predictions: Tensor<D>, targets: Tensor<D>, dims: &[impl AsIndex]) -> Tensor<D>;
}

configured! {
    /// The squared difference where it is small, the absolute one elsewhere.
    ///
    SmoothL1Loss, SmoothL1LossConfig() {
        /// Up to which difference it is squared, above zero. Default: 1
        #[config(default = 1.0)]
        beta: f32,
    }
}

raised! {
    SmoothL1Loss:
    forward<const D>(predictions: Tensor<D>, targets: Tensor<D>) -> Tensor<D>;
    forward_with_reduction<const D>(predictions: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_reduce_dims<const D>(predictions: Tensor<D>, targets: Tensor<D>, dims: &[impl AsIndex]) -> Tensor<D>;
}

configured! {
    /// The squared difference where it is small, the absolute one times `delta` elsewhere.
    ///
    HuberLoss, HuberLossConfig() {
        /// Up to which difference it is squared, not below zero.
        delta: f32,
    }
}

raised! {
    HuberLoss:
    forward<const D>(predictions: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction<const D>(predictions: Tensor<D>, targets: Tensor<D>) -> Tensor<D>;
    forward_residuals<const D>(residuals: Tensor<D>) -> Tensor<D>;
}

configured! {
    /// The Kullback-Leibler divergence of log-probabilities.
    ///
    KLDivLoss, KLDivLossConfig() {
        /// Whether the targets are log-probabilities, or probabilities. Default: false
        #[config(default = false)]
        log_target: bool,
    }
}

raised! {
    KLDivLoss:
    forward<const D>(predictions: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction<const D>(predictions: Tensor<D>, targets: Tensor<D>) -> Tensor<D>;
}

configured! {
    /// The negative log-likelihood of a Poisson distribution.
    ///
    PoissonNllLoss, PoissonNllLossConfig() {
        /// Whether the predictions are logarithms. Default: true
        #[config(default = true)]
        log_input: bool,
        /// Whether the term of the target's factorial is added. Default: false
        #[config(default = false)]
        full: bool,
        /// What keeps a logarithm finite, above zero. Default: 1e-8
        #[config(default = 1e-8)]
        eps: f64,
    }
}

raised! {
    PoissonNllLoss:
    forward<const D>(predictions: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction<const D>(predictions: Tensor<D>, targets: Tensor<D>) -> Tensor<D>;
}

configured! {
    /// The negative log-likelihood of normal distributions.
    ///
    GaussianNLLLoss, GaussianNLLLossConfig() {
        /// The least variance. Default: 1e-6
        #[config(default = 1e-6)]
        eps: f64,
        /// Whether the constant term is added. Default: false
        #[config(default = false)]
        full: bool,
    }
}

raised! {
    GaussianNLLLoss:
    forward<const D>(input: Tensor<D>, target: Tensor<D>, var: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction<const D>(input: Tensor<D>, target: Tensor<D>, var: Tensor<D>) -> Tensor<D>;
}
