//! A forward and a backward function as one differentiable operation.

use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, NoCheckpointing};
use burn::backend::{Dispatch, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, Flex};
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

use super::inputs::VjpInputs;
use super::operations::{OperationPhase, count_bytes, timed};
use super::step::{ForwardFn, Forwarded, attach};
use crate::awake::keep_awake;
use crate::error::{Error, Result, unwind};

/// Makes a differentiable operation of a forward function and its vector-Jacobian product.
///
/// `forward` gets the inputs without graph, on the inner device, and returns the output and what backward needs of
/// it. `backward` gets that and the gradient of the output, and returns one gradient for each input; `None` stands
/// for zero. Neither may build on tracked tensors. Integer and boolean inputs are captured by the closures.
///
/// Inputs may be tracked, untracked on an autodiff device, or plain: what is not tracked is a constant. Without an
/// autodiff device among them, `forward` is all that runs.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use epl_comm::custom_vjp;
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<1>::from_floats([1.0, 2.0], &device).require_grad();
/// let y = custom_vjp((x.clone(),), |(x,)| (x.clone() * x.clone(), x), |x, gradient| (Some(x * gradient * 2.0),));
/// let gradient = x.grad(&y.sum().backward());
/// assert_eq!(gradient.map(|g| g.into_data().iter::<f64>().collect()), Some(vec![2.0, 4.0]));
/// ```
///
/// # Panics
///
/// Unwinds with an [`Error::Invalid`] when the inputs lie on different backends or their devices differ in gradient
/// checkpointing; in the backward pass, when a gradient has another shape or element type than its input.
pub fn custom_vjp<const N: usize, const O: usize, I, S>(
    inputs: I,
    forward: impl FnOnce(I) -> (Tensor<O>, S),
    backward: impl FnOnce(S, Tensor<O>) -> I::Gradients + Send + 'static,
) -> Tensor<O>
where
    I: VjpInputs<N>,
    S: Send + 'static,
{
    let name = core::any::type_name_of_val(&forward);
    operation(name, inputs, |inputs, _| forward(inputs), |saved, gradient, _| backward(saved, gradient))
}

/// [`custom_vjp`] whose functions are also told of which inputs a gradient is asked. Forward need not keep what the others'
/// gradients alone would need, and backward may leave them out: what it gives for a constant is thrown away.
///
/// # Panics
///
/// As [`custom_vjp`].
pub fn custom_vjp_needed<const N: usize, const O: usize, I, S>(
    inputs: I,
    forward: impl FnOnce(I, [bool; N]) -> (Tensor<O>, S),
    backward: impl FnOnce(S, Tensor<O>, [bool; N]) -> I::Gradients + Send + 'static,
) -> Tensor<O>
where
    I: VjpInputs<N>,
    S: Send + 'static,
{
    operation(core::any::type_name_of_val(&forward), inputs, forward, backward)
}

/// The operation of a name.
fn operation<const N: usize, const O: usize, I, S>(
    name: &'static str,
    inputs: I,
    forward: impl FnOnce(I, [bool; N]) -> (Tensor<O>, S),
    backward: impl FnOnce(S, Tensor<O>, [bool; N]) -> I::Gradients + Send + 'static,
) -> Tensor<O>
where
    I: VjpInputs<N>,
    S: Send + 'static,
{
    let inputs = inputs.into_array();
    let needed = inputs.each_ref().map(Dispatch::is_tracked);
    let strategy = strategy(&inputs).unwrap_or_else(|error| unwind(error));
    let forward = move |inputs: [DispatchTensor; N]| {
        timed(name, OperationPhase::Forward, || {
            count_bytes(inputs.iter());
            keep_awake_beside(&inputs[0]);
            let (output, saved) = forward(I::from_array(inputs), needed);
            let output = output.into_dispatch();
            count_bytes([&output].into_iter());
            (output, saved)
        })
    };
    let Some(strategy) = strategy else {
        return Tensor::from_dispatch(forward(inputs).0);
    };
    let forward = move |inputs| -> Forwarded<N> {
        let (output, saved) = forward(inputs);
        let backward = move |gradient: DispatchTensor, needed| {
            timed(name, OperationPhase::Backward, || {
                count_bytes([&gradient].into_iter());
                keep_awake_beside(&gradient);
                let gradients = I::gradients(backward(saved, Tensor::from_dispatch(gradient), needed));
                count_bytes(gradients.iter().flatten());
                gradients
            })
        };
        (Tensor::<O>::from_dispatch(output).inner().into_dispatch(), Box::new(backward))
    };
    Tensor::from_dispatch(on_backend(inputs, strategy, Box::new(forward)).unwrap_or_else(|error| unwind(error)))
}

/// Keeps the rank's threads awake for an operation in host memory.
fn keep_awake_beside(tensor: &DispatchTensor) {
    if matches!(plain_kind(tensor), DispatchTensorKind::Flex(_)) {
        keep_awake();
    }
}

/// Where a tensor lies, whether it is tracked or not.
fn plain_kind(tensor: &DispatchTensor) -> &DispatchTensorKind {
    match &tensor.kind {
        DispatchTensorKind::Autodiff(inner) => inner,
        kind => kind,
    }
}

/// The one checkpointing strategy among the inputs; none when none has autodiff.
fn strategy(inputs: &[DispatchTensor]) -> Result<Option<GradientCheckpointingStrategy>> {
    let mut found = None;
    for input in inputs {
        match (input.autodiff, found) {
            (DispatchAutodiffContext::Enabled(new), Some(old)) if new != old => {
                return Err(Error::invalid(format!(
                    "the inputs of an operation have different gradient checkpointing: {old:?} and {new:?}; make their \
                     devices the same"
                )));
            }
            (DispatchAutodiffContext::Enabled(new), _) => found = Some(new),
            (DispatchAutodiffContext::Disabled, _) => {}
        }
    }
    Ok(found)
}

/// Chooses the code for the inputs' backend and strategy.
fn on_backend<const N: usize>(
    inputs: [DispatchTensor; N],
    strategy: GradientCheckpointingStrategy,
    forward: ForwardFn<'_, N>,
) -> Result<DispatchTensor> {
    macro_rules! attach_on {
        ($backend:ty) => {
            match strategy {
                GradientCheckpointingStrategy::Disabled => attach::<$backend, NoCheckpointing, N>(inputs, forward),
                GradientCheckpointingStrategy::Balanced => {
                    attach::<$backend, BalancedCheckpointing, N>(inputs, forward)
                }
            }
        };
    }
    match plain_kind(&inputs[0]) {
        DispatchTensorKind::Flex(_) => attach_on!(Flex),
        #[cfg(feature = "cuda")]
        DispatchTensorKind::Cube(_) => attach_on!(burn::backend::Cube),
        #[cfg(feature = "ndarray")]
        #[allow(deprecated, reason = "it is there, and others still use it")]
        DispatchTensorKind::NdArray(_) => attach_on!(burn::backend::NdArray),
        #[allow(unreachable_patterns, reason = "other backends exist only when a user enables them in Burn")]
        _ => Err(Error::invalid(
            "a custom operation has no code for this backend; enabled: Flex, CUDA with feature `cuda`, NdArray with feature `ndarray`",
        )),
    }
}
