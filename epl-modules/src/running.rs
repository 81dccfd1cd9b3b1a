//! What layers keep from one forward to the next, without a graph.

use burn::module::RunningState;
use burn::tensor::Tensor;

/// Without a graph, on the device without autodiff.
pub(crate) fn plain<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.is_autodiff() { x.inner() } else { x }
}

/// Puts a new value in the place of the one that is kept, in its type.
pub(crate) fn put(running: &RunningState<Tensor<1>>, value: Tensor<1>) {
    let old = running.value_sync();
    let value = value.cast(old.dtype());
    running.update(if old.is_autodiff() { Tensor::from_inner(value) } else { value });
    // An update waits until the layer reads again; what saves or compares the model would miss it.
    let _ = running.value_sync();
}
