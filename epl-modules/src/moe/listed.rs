//! What a list of assignments says of rows, in host memory: experts take as many as come.

use burn::tensor::{Tensor, TensorData};
use epl_comm::custom_vjp;
use epl_core::model::precision::in_wide;

use super::moving::numbers;
use super::router::Routed;
use super::routing::{Assignment, Routing};
use crate::embedding::rows_at;
use crate::host::{self, HostFloat, Real, View, host_float};

/// The tokens that the experts take, one row an assignment.
///
/// # Shapes
///
/// - x: `[tokens, d_model]`
/// - output: `[assignments, d_model]`
pub(super) fn rows_of(x: Tensor<2>, routing: &Routing) -> Tensor<2> {
    let tokens = routing.assignments.iter().map(|assignment| assignment.token).collect();
    let tokens = numbers(tokens, &x.device());
    rows_at(x, tokens)
}

/// Adds each row, times its weight, to the row of its token, in f32 at least: the gradient of a weight is a sum over the
/// row, and what the router learns. A token without an expert gets zeros.
///
/// # Shapes
///
/// - rows: `[assignments, d_model]`
/// - weights: `[assignments, 1]`
/// - output: `[tokens, d_model]`
pub(super) fn combine(rows: Tensor<2>, weights: Tensor<2>, routing: &Routing) -> Tensor<2> {
    let [_, width] = rows.dims();
    let tokens: Vec<usize> = routing.assignments.iter().map(|assignment| assignment.token).collect();
    let shape = [routing.mask.as_slice().len(), width];
    in_wide(rows, |rows| {
        let weights = weights.cast(rows.dtype());
        match host_float(&rows) {
            Some(HostFloat::Double) => combine_on_host::<f64>(rows, weights, tokens, shape),
            _ => combine_on_host::<f32>(rows, weights, tokens, shape),
        }
    })
}

/// [`combine`] as one operation.
fn combine_on_host<T: Real>(rows: Tensor<2>, weights: Tensor<2>, tokens: Vec<usize>, shape: [usize; 2]) -> Tensor<2> {
    custom_vjp(
        (rows, weights),
        move |(rows, weights)| {
            let (device, [x, w]) = (rows.device(), [&rows, &weights].map(|x| View::<T>::new(x.clone())));
            let sums = host::scatter_add(shape, &tokens, x.slice(), Some(w.slice()));
            (host::tensor(sums, shape, &device), (rows, weights, tokens))
        },
        move |(rows, weights, tokens), grad| {
            let (device, dims) = (grad.device(), [rows.dims(), weights.dims()]);
            let [rows, weights, grad] = [rows, weights, grad].map(View::<T>::new);
            let inputs = (rows.slice(), weights.slice());
            let (of_rows, of_weights) = host::scatter_add_backward(shape[1], &tokens, inputs, grad.slice());
            (Some(host::tensor(of_rows, dims[0], &device)), Some(host::tensor(of_weights, dims[1], &device)))
        },
    )
}

/// The weight of each assignment: differentiable in the probabilities.
///
/// A switch gate weighs by the probability. A top-2 gate shares a token between the experts that take it:
///
/// ```text
/// both take it:  p / (p + q)        p of this expert, q of the other one
/// one takes it:  1                  whatever p, so the router learns nothing from it
/// ```
///
/// # Shapes
///
/// - output: `[assignments, 1]`
pub(super) fn weights(routed: &Routed, routing: &Routing, choices: usize) -> Tensor<2> {
    let [tokens, experts] = routed.probabilities.dims();
    let device = routed.probabilities.device();
    let flat = routed.probabilities.clone().reshape([tokens * experts]);
    let select = |expert: fn(&Assignment) -> usize| {
        let places = routing.assignments.iter().map(|assignment| assignment.token * experts + expert(assignment));
        flat.clone().select(0, numbers(places.collect(), &device))
    };
    let own = select(|assignment| assignment.expert);
    if choices == 1 {
        return own.unsqueeze_dim(1);
    }
    let other = select(|assignment| assignment.partner.unwrap_or(assignment.expert));
    let indicator = |value: fn(bool) -> bool| {
        let values: Vec<f32> =
            routing.assignments.iter().map(|assignment| f32::from(value(assignment.partner.is_some()))).collect();
        let shape = [values.len()];
        Tensor::<1>::from_data(TensorData::new(values, shape), (&device, own.dtype()))
    };
    let (shared, alone) = (indicator(|shared| shared), indicator(|shared| !shared));
    let share = own.clone() * shared.clone() + alone.clone();
    let total = (own + other) * shared + alone;
    (share / total).unsqueeze_dim(1)
}
