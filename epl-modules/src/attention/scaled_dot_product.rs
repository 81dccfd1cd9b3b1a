//! Scaled dot-product attention as one node of the graph.
//!
//! Backward keeps the queries, keys and values, which are alive anyway, and one matrix of weights. As separate
//! operations Burn would keep the scores before and after the bias, every mask, and the weights twice.

use burn::tensor::{DType, Tensor};
use epl_comm::custom_vjp;
use epl_core::model::precision::in_wide;

use super::weighing::{SavedWeights, Weighing};
use crate::host::{self, HostFloat, Real, View, host_float, matmul};

/// softmax(q kᵀ · scale + bias) v, with the masks and the dropout of `weighing`: of 16-bit inputs the products in 16 bits,
/// all between them in f32.
///
/// # Shapes
///
/// - query: `[batch_size, heads, queries, head_dim]`, key and value: `[batch_size, heads, keys, head_dim]`
/// - bias: `[1 or batch_size, heads, queries, keys]`
/// - output: `[batch_size, heads, queries, head_dim]`
pub(super) fn attend(
    (query, key, value): (Tensor<4>, Tensor<4>, Tensor<4>),
    bias: Option<Tensor<4>>,
    weighing: Weighing,
) -> Tensor<4> {
    match bias {
        Some(bias) => custom_vjp(
            (query, key, value, bias),
            move |(query, key, value, bias)| forward((query, key, value), Some(bias), weighing),
            |saved, grad| {
                let (batch_size, dtype) = saved.bias;
                let (query, key, value, scores) = saved.backward(grad);
                let bias = if batch_size == 1 { over_batch(scores) } else { scores };
                (Some(query), Some(key), Some(value), Some(bias.cast(dtype)))
            },
        ),
        None => custom_vjp(
            (query, key, value),
            move |(query, key, value)| forward((query, key, value), None, weighing),
            |saved, grad| {
                let (query, key, value, _) = saved.backward(grad);
                (Some(query), Some(key), Some(value))
            },
        ),
    }
}

/// What backward needs.
struct Saved {
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    weights: SavedWeights,
    scale: f64,
    /// The bias's number of sequences and its type.
    bias: (usize, DType),
}

fn forward(
    (query, key, value): (Tensor<4>, Tensor<4>, Tensor<4>),
    bias: Option<Tensor<4>>,
    weighing: Weighing,
) -> (Tensor<4>, Saved) {
    let of_bias = bias.as_ref().map_or((1, query.dtype()), |bias| (bias.dims()[0], bias.dtype()));
    let scores = matmul(query.clone(), key.clone().swap_dims(2, 3));
    let weights = weighing.weigh(scores, bias);
    let output = matmul(weights.kept, value.clone());
    (output, Saved { query, key, value, weights: weights.saved, scale: weighing.scale, bias: of_bias })
}

impl Saved {
    /// The gradients of the queries, keys and values, and of the scores with their bias; the last in f32 at least.
    fn backward(self, grad: Tensor<4>) -> (Tensor<4>, Tensor<4>, Tensor<4>, Tensor<4>) {
        let dtype = grad.dtype();
        let grad_weights = matmul(grad.clone(), self.value.swap_dims(2, 3));
        let (grad_scores, kept) = self.weights.backward(grad_weights);
        let grad_value = matmul(kept.swap_dims(2, 3), grad);
        let narrow = grad_scores.clone().cast(dtype);
        let grad_query = scaled(matmul(narrow.clone(), self.key), self.scale);
        let grad_key = scaled(matmul(narrow.swap_dims(2, 3), self.query), self.scale);
        (grad_query, grad_key, grad_value, grad_scores)
    }
}

/// The sum over the batch, in the order of the batch.
fn over_batch(scores: Tensor<4>) -> Tensor<4> {
    match host_float(&scores) {
        Some(HostFloat::Single) => over_batch_host::<f32>(scores),
        Some(HostFloat::Double) => over_batch_host::<f64>(scores),
        None => scores.sum_dim(0),
    }
}

fn over_batch_host<T: Real>(scores: Tensor<4>) -> Tensor<4> {
    let (mut shape, device) = (scores.dims(), scores.device());
    shape[0] = 1;
    host::tensor(host::sum_blocks(View::<T>::new(scores).slice(), shape.iter().product()), shape, &device)
}

fn scaled(x: Tensor<4>, scale: f64) -> Tensor<4> {
    if scale == 1.0 { x } else { in_wide(x, |x| x * scale) }
}
