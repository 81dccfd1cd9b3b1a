//! Rows in another order, on any device, where both ways are known: their gradients are gathered, too.

use burn::tensor::kind::Numeric;
use burn::tensor::{Device, Int, Tensor, TensorData};
use epl_comm::custom_vjp;
use epl_core::model::precision::{cast, widen};

/// Rows of `x`: row i of the result is row `from[i]`, or zeros where `from[i]` is the number of rows. `back` says the other
/// way, as many times as a row may be taken: in which row of the result each row of `x` is, or the number of those rows.
///
/// Both ways gather. A scatter on a device either adds atomically, in no order, or walks its rows one after the other.
///
/// # Shapes
///
/// - x: `[rows, width]`
/// - from: `[moved]`
/// - back: `[rows]` each
/// - output: `[moved, width]`
pub(super) fn moved(x: Tensor<2>, from: Tensor<1, Int>, back: Vec<Tensor<1, Int>>) -> Tensor<2> {
    custom_vjp(
        (x,),
        |(x,)| (or_zeros(x, from), ()),
        move |(), grad| {
            let dtype = grad.dtype();
            let sums = back.into_iter().map(|back| widen(or_zeros(grad.clone(), back)));
            (sums.reduce(|sum, next| sum + next).map(|sum| cast(sum, dtype)),)
        },
    )
}

/// What lies along dim 0 at these indices; zeros for the index behind the last one.
pub(super) fn or_zeros<const D: usize, K: Numeric>(x: Tensor<D, K>, indices: Tensor<1, Int>) -> Tensor<D, K> {
    let (mut dims, options) = (x.dims(), (&x.device(), x.dtype()));
    let (rows, count) = (dims[0] as i64, indices.dims()[0]);
    dims[0] = count;
    if rows == 0 {
        return Tensor::zeros(dims, options);
    }
    let mut mask = [1; D];
    mask[0] = count;
    let is_behind = indices.clone().greater_equal_elem(rows).reshape(mask).expand(dims);
    x.select(0, indices.clamp_max(rows - 1)).mask_fill(is_behind, 0)
}

/// Numbers of the host, on a device.
pub(super) fn numbers(values: Vec<usize>, device: &Device) -> Tensor<1, Int> {
    let shape = [values.len()];
    let values: Vec<i64> = values.into_iter().map(|value| value as i64).collect();
    Tensor::from_data(TensorData::new(values, shape), &device.clone().without_autodiff())
}
