//! Products of groups of rows, each with a matrix of its own, in host memory.

use burn::tensor::Tensor;
use epl_comm::{count_work, custom_vjp_needed};

use crate::host::product::{Matrix, Multiply, WORTH_A_THREAD, product, products};
use crate::host::{self, View};

/// The rows of each group times the group's matrix, without padding. A group without a row costs nothing, and the gradient of
/// its matrix is zero.
///
/// # Shapes
///
/// - rows: `[Σ counts, d_input]`, the groups behind each other
/// - weights: `[groups, d_input, d_output]`
/// - output: `[Σ counts, d_output]`
pub(super) fn grouped_product<T: Multiply>(rows: Tensor<2>, weights: Tensor<3>, counts: &[usize]) -> Tensor<2> {
    let counts = counts.to_vec();
    custom_vjp_needed(
        (rows, weights),
        move |(rows, weights)| {
            let (device, [_, d_input, d_output]) = (rows.device(), weights.dims());
            let total = rows.dims()[0];
            count_work(|| 2.0 * (total * d_input * d_output) as f64);
            let (x, w) = (View::<T>::new(rows.clone()), View::<T>::of_matrices(weights.clone()));
            let x = groups(x.slice(), &counts, d_input);
            let y = products(x.into_iter().zip(w.matrices()).map(|(x, w)| product(x, w)).collect());
            (host::tensor(y, [total, d_output], &device), (rows, weights, counts))
        },
        |(rows, weights, counts), grad, needed| {
            let (device, row_dims, weight_dims) = (grad.device(), rows.dims(), weights.dims());
            let [_, d_input, d_output] = weight_dims;
            let (x, g, w) = (View::<T>::new(rows), View::<T>::new(grad), View::<T>::of_matrices(weights));
            let (x, g) = (groups(x.slice(), &counts, d_input), groups(g.slice(), &counts, d_output));
            let of_rows = || {
                let all = g.iter().zip(w.matrices()).map(|(g, w)| product(*g, w.transposed())).collect();
                needed[0].then(|| host::tensor(products(all), row_dims, &device))
            };
            let of_weights = || {
                let all = x.iter().zip(&g).map(|(x, g)| product(x.transposed(), *g)).collect();
                needed[1].then(|| host::tensor(products(all), weight_dims, &device))
            };
            let asked = needed.iter().filter(|needed| **needed).count();
            count_work(|| 2.0 * (asked * row_dims[0] * d_input * d_output) as f64);
            let is_worth_it = needed == [true; 2] && row_dims[0] * d_input * d_output >= WORTH_A_THREAD;
            host::both(is_worth_it, of_rows, of_weights)
        },
    )
}

/// The rows of each group.
fn groups<'a, T>(mut values: &'a [T], counts: &[usize], width: usize) -> Vec<Matrix<'a, T>> {
    let next = |count: &usize| {
        let (group, rest) = values.split_at(count * width);
        values = rest;
        Matrix::new(group, [*count, width])
    };
    counts.iter().map(next).collect()
}
