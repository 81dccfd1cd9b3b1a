//! Products of groups of rows, each with a matrix of its own, in host memory.

use burn::tensor::Tensor;
use epl_comm::{count_work, custom_vjp_needed};

use crate::host::product::{Matrix, Multiply, Unwritten, behind_each_other, multiply_all, product};
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
            let mut y = Unwritten::new(total * d_output);
            multiply_all(behind_each_other(y.memory(), x.into_iter().zip(w.matrices()).map(|(x, w)| product(x, w))));
            // SAFETY: all rows are of some group, and each group's are written.
            let y = unsafe { y.written() };
            (host::tensor(y, [total, d_output], &device), (rows, weights, counts))
        },
        |(rows, weights, counts), grad, needed| {
            let (device, row_dims, weight_dims) = (grad.device(), rows.dims(), weights.dims());
            let [_, d_input, d_output] = weight_dims;
            let (x, g, w) = (View::<T>::new(rows), View::<T>::new(grad), View::<T>::of_matrices(weights));
            let (x, g) = (groups(x.slice(), &counts, d_input), groups(g.slice(), &counts, d_output));
            let elements = [row_dims.iter().product(), weight_dims.iter().product()];
            let mut values = [0, 1].map(|input| needed[input].then(|| Unwritten::<T>::new(elements[input])));
            let [of_rows, of_weights] = values.each_mut().map(Option::as_mut);
            let products = g.iter().zip(w.matrices()).map(|(g, w)| product(*g, w.transposed()));
            let of_rows = of_rows.map(|values| behind_each_other(values.memory(), products));
            let products = x.iter().zip(&g).map(|(x, g)| product(x.transposed(), *g));
            let of_weights = of_weights.map(|values| behind_each_other(values.memory(), products));
            multiply_all(in_turn(of_rows.into_iter().flatten(), of_weights.into_iter().flatten()));
            let asked = needed.iter().filter(|needed| **needed).count();
            count_work(|| 2.0 * (asked * row_dims[0] * d_input * d_output) as f64);
            // SAFETY: all rows are of some group, and each group's are written, as is each group's matrix.
            let [of_rows, of_weights] = values.map(|values| values.map(|values| unsafe { values.written() }));
            let of_rows = of_rows.map(|values| host::tensor(values, row_dims, &device));
            (of_rows, of_weights.map(|values| host::tensor(values, weight_dims, &device)))
        },
    )
}

/// One of each after the other, where both have as many or one has none: as one takes longer than the other, every thread should have
/// of both.
fn in_turn<A>(mut some: impl Iterator<Item = A>, mut others: impl Iterator<Item = A>) -> impl Iterator<Item = A> {
    core::iter::from_fn(move || Some([some.next(), others.next()]).filter(|next| next.iter().any(Option::is_some)))
        .flat_map(|next| next.into_iter().flatten())
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
