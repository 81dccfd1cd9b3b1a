//! An optimizer: the sign of the momentum.

use burn::optim::{LearningRate, Optimizer, RecordState};
use burn::tensor::{Device, Tensor};
use epl::optim::OptimizerConfig;
use serde::Serialize;

/// What the optimizer is made with.
#[derive(Debug, Serialize)]
pub struct SignedConfig {
    momentum: f64,
}

impl SignedConfig {
    pub fn new() -> Self {
        Self { momentum: 0.9 }
    }
}

impl OptimizerConfig for SignedConfig {
    const NAME: &'static str = "Signed";
    const ELEMENT_WISE: bool = true;

    fn build(&self) -> impl Optimizer {
        Signed { momentum: self.momentum }
    }
}

#[derive(Clone)]
struct Signed {
    momentum: f64,
}

#[derive(RecordState, Clone)]
pub struct SignedState<const D: usize> {
    mean: Tensor<D>,
}

impl Optimizer for Signed {
    type State<const D: usize> = SignedState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<SignedState<D>>,
    ) -> (Tensor<D>, Option<SignedState<D>>) {
        let mean = match state {
            Some(SignedState { mean }) => mean * self.momentum + gradient * (1.0 - self.momentum),
            None => gradient,
        };
        (tensor - mean.clone().sign() * rate, Some(SignedState { mean }))
    }

    fn to_device<const D: usize>(state: SignedState<D>, device: &Device) -> SignedState<D> {
        SignedState { mean: state.mean.to_device(device) }
    }
}
