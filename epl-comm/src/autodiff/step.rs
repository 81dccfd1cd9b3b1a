//! The step on Burn's tape that runs a custom backward function.
//!
//! ```text
//!            guards (until registered)
//! inputs ──────────────────────────▶ prepare ──▶ finish(state, output) ──▶ tracked output
//!    │ primitives                                  ▲
//!    └──────────▶ forward, on the inner backend ───┘ saved values, inside `state`
//! ```
//!
//! The state holds inner tensors only: a tracked tensor or a guard in it would keep its own graph alive.

use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, AutodiffBackend, Backend, BackendTensor, DispatchAutodiffContext, DispatchKindConversion, DispatchTensor,
    TensorMetadata,
};
use burn::tensor::{DType, Shape};

use crate::error::{Error, Result, unwind};

/// The backward function: from the output's gradient, and which inputs need one, to those of the inputs.
pub(super) type BackwardFn<const N: usize> =
    Box<dyn FnOnce(DispatchTensor, [bool; N]) -> [Option<DispatchTensor>; N] + Send>;

/// What the forward function gives: the output, and the way back.
pub(super) type Forwarded<const N: usize> = (DispatchTensor, BackwardFn<N>);

/// The forward function. A box of it, as of the way back: what is here is compiled for each number of inputs, not for each operation.
pub(super) type ForwardFn<'a, const N: usize> = Box<dyn FnOnce([DispatchTensor; N]) -> Forwarded<N> + 'a>;

/// What the tape keeps. Cloned by bounds of the tape only; the function is taken once.
#[derive(Clone)]
struct StepState<const N: usize> {
    backward: Arc<Mutex<Option<BackwardFn<N>>>>,
    inputs: [(Shape, DType); N],
}

impl<const N: usize> fmt::Debug for StepState<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "custom_vjp{:?}", self.inputs)
    }
}

#[derive(Debug)]
struct CustomVjp;

impl<B: Backend, const N: usize> Backward<B, N> for CustomVjp
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = StepState<N>;

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let device = gradient.device();
        let backward = ops.state.backward.lock().unwrap_or_else(PoisonError::into_inner).take();
        let backward = backward.expect("the tape runs a step once");
        let needed = core::array::from_fn(|input| ops.parents[input].is_some());
        let gradients = backward(DispatchTensor::from_backend(BackendTensor::Float(gradient)), needed);
        for ((parent, gradient), (shape, dtype)) in ops.parents.into_iter().zip(gradients).zip(ops.state.inputs) {
            let Some(parent) = parent else { continue };
            let gradient = match gradient {
                Some(gradient) => {
                    let gradient = float::<B>(gradient);
                    check(&gradient, &shape, dtype);
                    gradient
                }
                // A leaf may go without; the step of any other node insists on a gradient.
                None if parent.order == 0 => continue,
                None => B::float_zeros(shape, &device, dtype.into()),
            };
            grads.register::<B>(parent.id, gradient);
        }
    }
}

/// Runs `forward` on the inner tensors and registers its way back on the tape of the tracked inputs.
pub(super) fn attach<B: Backend, C: CheckpointStrategy, const N: usize>(
    inputs: [DispatchTensor; N],
    forward: ForwardFn<'_, N>,
) -> Result<DispatchTensor>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B, C>>,
{
    let shapes = core::array::from_fn(|index| (inputs[index].shape(), inputs[index].dtype()));
    let mut guards = Vec::with_capacity(N);
    let mut inner = Vec::with_capacity(N);
    for input in inputs {
        let (primitive, guard) = take_apart::<B, C>(input)?;
        inner.push(DispatchTensor::from_backend(BackendTensor::<B>::Float(primitive)));
        guards.push(guard);
    }
    let (output, backward) = forward(array(inner));
    let output = float::<B>(output);
    let prepared = CustomVjp.prepare::<C>(array(guards)).compute_bound().stateful();
    let output = match prepared {
        OpsKind::Tracked(step) => {
            step.finish(StepState { backward: Arc::new(Mutex::new(Some(backward))), inputs: shapes }, output)
        }
        OpsKind::UnTracked(step) => step.finish(output),
    };
    Ok(DispatchTensor::from_backend(BackendTensor::<Autodiff<B, C>>::Float(output)))
}

/// The primitive and the node of an input; one without autodiff becomes a constant.
fn take_apart<B: Backend, C: CheckpointStrategy>(input: DispatchTensor) -> Result<(FloatTensor<B>, NodeGuard)>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B, C>>,
{
    let tensor = match input.autodiff {
        DispatchAutodiffContext::Disabled => {
            let primitive =
                <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(input).map_err(refuse)?.float();
            <Autodiff<B, C> as AutodiffBackend>::from_inner(primitive)
        }
        DispatchAutodiffContext::Enabled(_) => {
            <DispatchTensor as DispatchKindConversion<Autodiff<B, C>>>::try_into_backend(input).map_err(refuse)?.float()
        }
    };
    Ok(tensor.into_parts())
}

fn refuse(message: String) -> Error {
    Error::invalid(format!(
        "the inputs of a custom operation lie on different backends: {message}; move them to one device"
    ))
}

fn float<B: Backend>(tensor: DispatchTensor) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    match <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(tensor) {
        Ok(tensor) => tensor.float(),
        Err(message) => unwind(Error::invalid(format!(
            "a custom operation must give tensors on the backend of its inputs: {message}"
        ))),
    }
}

/// A gradient is like its input: the tape would add it to others of another kind only to fail far from here.
fn check(gradient: &impl TensorMetadata, shape: &Shape, dtype: DType) {
    const WHO: &str = "the backward function of a custom operation";
    let (given, given_dtype) = (gradient.shape(), gradient.dtype());
    if given != *shape {
        unwind(Error::invalid(format!(
            "{WHO} gave a gradient of shape {:?} for an input of shape {:?}; sum or reshape it to the input's",
            given.as_slice(),
            shape.as_slice()
        )));
    }
    if given_dtype != dtype {
        let (given, dtype) = (given_dtype.name(), dtype.name());
        unwind(Error::invalid(format!(
            "{WHO} gave a gradient of {given} for an input of {dtype}; cast() it to {dtype}"
        )));
    }
}

fn array<T, const N: usize>(items: Vec<T>) -> [T; N] {
    match items.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("one item was pushed for every input"),
    }
}
