//! What a list of assignments says of rows, in host memory: experts take as many as come.

use burn::tensor::{DType, Tensor};
use epl_comm::custom_vjp;
use epl_core::model::precision::in_wide;

use super::gate::Gate;
use super::moving::numbers;
use super::router::Routed;
use super::routing::Routing;
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
/// It is the probability of the expert, or where the gate renormalises, its share in those of all experts that take the token:
///
/// ```text
/// several take it:  p / (p + q + …)     p of this expert, q … of the others
/// one takes it:     1                   whatever p, so the router learns nothing from it
/// ```
///
/// # Shapes
///
/// - output: `[assignments, 1]`
pub(super) fn weights(routed: &Routed, routing: &Routing, gate: Gate) -> Tensor<2> {
    let ([tokens, experts], device) = (routed.probabilities.dims(), routed.probabilities.device());
    let places = routing.assignments.iter().map(|one| one.token * experts + one.expert).collect();
    let own = routed.probabilities.clone().reshape([tokens * experts]).select(0, numbers(places, &device));
    let own = own.unsqueeze_dim(1);
    if !gate.renormalises() {
        return own;
    }
    let of_tokens = routing.assignments.iter().map(|one| one.token).collect();
    match host_float(&own) {
        Some(HostFloat::Double) => shares::<f64>(own, of_tokens, tokens),
        _ => shares::<f32>(own, of_tokens, tokens),
    }
}

/// The share of each row's number in those of all rows of its token, as one operation. Where all are so small that a division by
/// them would overflow, the shares are equal, and nothing is learned.
fn shares<T: Real>(own: Tensor<2>, of_rows: Vec<usize>, tokens: usize) -> Tensor<2> {
    let least = T::of(least(own.dtype()));
    custom_vjp(
        (own,),
        move |(own,)| {
            let (device, dims, own) = (own.device(), own.dims(), View::<T>::new(own));
            let (mut totals, mut counts) = (vec![T::ZERO; tokens], vec![0_u32; tokens]);
            for (token, own) in of_rows.iter().zip(own.slice()) {
                totals[*token] += *own;
                counts[*token] += 1;
            }
            // Nothing is divided by where there is nothing to learn.
            let totals: Vec<Option<T>> = totals
                .into_iter()
                .zip(&counts)
                .map(|(total, count)| (*count > 1 && (total >= least || total.is_nan())).then_some(total))
                .collect();
            let share = |(token, own): (&usize, &T)| match totals[*token] {
                Some(total) => *own / total,
                None => T::of(1.0 / f64::from(counts[*token])),
            };
            let shares: Vec<T> = of_rows.iter().zip(own.slice()).map(share).collect();
            (host::tensor(shares.clone(), dims, &device), (of_rows, shares, totals))
        },
        |(of_rows, shares, totals), grad| {
            let (device, dims, grad) = (grad.device(), grad.dims(), View::<T>::new(grad));
            // d share / d own is (1 - share) / total, d share / d other is -share / total.
            let mut means = vec![T::ZERO; totals.len()];
            let rows = || of_rows.iter().zip(&shares).zip(grad.slice());
            rows().for_each(|((token, share), grad)| means[*token] += *share * *grad);
            let of_row = |((token, _), grad): ((&usize, &T), &T)| match totals[*token] {
                Some(total) => (*grad - means[*token]) / total,
                None => T::ZERO,
            };
            (Some(host::tensor(rows().map(of_row).collect(), dims, &device)),)
        },
    )
}

/// The least sum of probabilities that others are divided by.
pub(super) fn least(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE / f64::EPSILON,
        _ => f64::from(f32::MIN_POSITIVE) / f64::from(f32::EPSILON),
    }
}
