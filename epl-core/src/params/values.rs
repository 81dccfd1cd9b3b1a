//! A parameter with other values, of which its identifier stays, and how it takes part in autodiff.

use burn::module::Param;
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

/// The parameter with other values; whether it asks for a gradient, how that is computed, and its identifier stay.
///
/// # Shapes
///
/// - values: the parameter's, on its device without autodiff
pub fn with_values<const D: usize>(param: Param<Tensor<D>>, values: Tensor<D>) -> Param<Tensor<D>> {
    with(param, values, true)
}

/// The parameter with other values, of any shape; they ask for a gradient where `tracked` is true and the parameter does.
pub(crate) fn with<const D: usize>(param: Param<Tensor<D>>, values: Tensor<D>, tracked: bool) -> Param<Tensor<D>> {
    param.map(|old| Tracking::of(&old).put_on(values, tracked))
}

/// The parameter with values made of its own, which track no gradients.
pub(crate) fn replaced<const D: usize>(
    param: Param<Tensor<D>>,
    values: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Param<Tensor<D>> {
    param.map(|old| {
        let tracking = Tracking::of(&old);
        tracking.put_on(values(if tracking.is_autodiff { old.inner() } else { old }), true)
    })
}

/// How a parameter takes part in autodiff.
struct Tracking {
    is_autodiff: bool,
    asks: bool,
    checkpointing: Option<GradientCheckpointingStrategy>,
}

impl Tracking {
    fn of<const D: usize>(param: &Tensor<D>) -> Self {
        Self {
            is_autodiff: param.is_autodiff(),
            asks: param.is_require_grad(),
            checkpointing: param.gradient_checkpointing_strategy(),
        }
    }

    fn put_on<const D: usize>(&self, values: Tensor<D>, tracked: bool) -> Tensor<D> {
        if !self.is_autodiff {
            return values;
        }
        let values = Tensor::from_inner(values);
        let values = match self.checkpointing {
            Some(strategy) => values.with_gradient_checkpointing_strategy(strategy),
            None => values,
        };
        values.set_require_grad(tracked && self.asks)
    }
}
