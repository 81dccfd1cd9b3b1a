//! Products of groups of rows, each with a matrix of its own, in host memory.

use burn::tensor::Tensor;
use epl_comm::{count_work, custom_vjp_needed};

use crate::host::matrix::Matrix;
use crate::host::product::{Multiply, multiply_all, product};
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
    let (counts, [groups_of_weights, d_input, _]) = (counts.to_vec(), weights.dims());
    assert_eq!(groups_of_weights, counts.len(), "a matrix for each group");
    assert_eq!(rows.dims(), [counts.iter().sum(), d_input], "the rows of all groups");
    custom_vjp_needed(
        (rows, weights),
        move |(rows, weights), [_, asks_weights]| {
            let (device, [_, d_input, d_output]) = (rows.device(), weights.dims());
            let total = rows.dims()[0];
            count_work(|| 2.0 * (total * d_input * d_output) as f64);
            let (x, w) = (View::<T>::new(rows.clone()), View::<T>::of_matrices(weights.clone()));
            let x = groups(x.slice(), &counts, d_input);
            let products = x.into_iter().zip(w.matrices()).map(|(x, w)| product(x, w));
            let [y] = multiply_all([products.collect()]);
            (host::tensor(y, [total, d_output], &device), (asks_weights.then_some(rows), weights, counts))
        },
        |(rows, weights, counts), grad, needed| {
            let (device, total, weight_dims) = (grad.device(), grad.dims()[0], weights.dims());
            let [_, d_input, d_output] = weight_dims;
            let row_dims = [total, d_input];
            let (x, g, w) = (rows.map(View::<T>::new), View::<T>::new(grad), View::<T>::of_matrices(weights));
            let x = x.as_ref().map_or(Vec::new(), |x| groups(x.slice(), &counts, d_input));
            let g = groups(g.slice(), &counts, d_output);
            let of_rows = g.iter().zip(w.matrices()).map(|(g, w)| product(*g, w.transposed()));
            let of_weights = x.iter().zip(&g).map(|(x, g)| product(x.transposed(), *g));
            let [of_rows, of_weights] = multiply_all([of_rows.filter(|_| needed[0]).collect(), of_weights.collect()]);
            let asked = needed.iter().filter(|needed| **needed).count();
            count_work(|| 2.0 * (asked * row_dims[0] * d_input * d_output) as f64);
            let of_rows = needed[0].then(|| host::tensor(of_rows, row_dims, &device));
            (of_rows, needed[1].then(|| host::tensor(of_weights, weight_dims, &device)))
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

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, Distribution};

    use super::*;

    /// What some groups give, and the gradients of rows and matrices, by Burn's products.
    fn by_narrowing(x: &Tensor<2>, weights: &Tensor<3>, counts: &[usize]) -> Tensor<2> {
        let mut first = 0;
        let of = |(group, count): (usize, &usize)| {
            first += count;
            (*count > 0).then(|| {
                let rows = x.clone().narrow(0, first - count, *count);
                rows.matmul(weights.clone().narrow(0, group, 1).squeeze_dim(0))
            })
        };
        Tensor::cat(counts.iter().enumerate().filter_map(of).collect(), 0)
    }

    /// Compares products of this type, also of matrices that lie transposed, and their bits on some threads with those on one.
    fn check<T: Multiply>(dtype: DType, limit: f64) {
        let (device, counts, [d_input, d_output]) = (Device::flex().autodiff(), [600, 0, 300, 5], [140, 300]);
        let uniform = Distribution::Uniform(-1.0, 1.0);
        let x = Tensor::<2>::random([905, d_input], uniform, &device).cast(dtype);
        let counted = Tensor::<3>::random([counts.len(), d_input, d_output], uniform, &device).cast(dtype);
        let lain = counted.clone().swap_dims(1, 2).into_data();
        let transposed = Tensor::<3>::from_data(lain, (&device, dtype)).swap_dims(1, 2);
        let grad = Tensor::<2>::random([905, d_output], uniform, &device).cast(dtype);
        for (weights, tracked) in [
            (&counted, [true, true]),
            (&counted, [true, false]),
            (&transposed, [false, true]),
            (&transposed, [true, true]),
        ] {
            let run = |f: &dyn Fn(Tensor<2>, Tensor<3>) -> Tensor<2>| {
                let x = x.clone().detach().set_require_grad(tracked[0]);
                let weights = weights.clone().detach().set_require_grad(tracked[1]);
                let y = f(x.clone(), weights.clone());
                let grads = (y.clone() * grad.clone()).sum().backward();
                let values = |tensor: Tensor<1>| tensor.into_data().iter::<f64>().collect::<Vec<f64>>();
                let of = [x.grad(&grads).map(|g| g.flatten(0, 1)), weights.grad(&grads).map(|g| g.flatten(0, 2))];
                (values(y.inner().flatten(0, 1)), of.map(|of| of.map(values)))
            };
            let (exact, exact_grads) = run(&|x, weights| by_narrowing(&x, &weights, &counts));
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| run(&|x, weights| grouped_product::<T>(x, weights, &counts)))
            };
            let (ours, grads) = on(1);
            for threads in [2, 7] {
                assert_eq!(on(threads), (ours.clone(), grads.clone()), "bits on {threads} threads");
            }
            let near = |ours: &[f64], exact: &[f64]| {
                assert_eq!(ours.len(), exact.len());
                let far = epl_testing::largest(ours.iter().zip(exact).map(|(a, b)| (a - b).abs()));
                assert!(far < limit, "{far:e}");
            };
            near(&ours, &exact);
            for (index, (ours, exact)) in grads.iter().zip(&exact_grads).enumerate() {
                assert_eq!([ours.is_some(), exact.is_some()], [tracked[index]; 2]);
                ours.iter().zip(exact).for_each(|(ours, exact)| near(ours, exact));
            }
        }
    }

    #[test]
    fn groups_and_their_gradients_are_products_of_their_own_on_any_number_of_threads() {
        check::<f32>(DType::F32, 1e-3);
        check::<f64>(DType::F64, 1e-11);
    }

    #[test]
    fn groups_of_which_none_has_a_row_give_nothing() {
        let device = Device::flex().autodiff();
        let x = Tensor::<2>::zeros([0, 3], &device).require_grad();
        let weights = Tensor::<3>::ones([2, 3, 5], &device).require_grad();
        let y = grouped_product::<f32>(x.clone(), weights.clone(), &[0, 0]);
        assert_eq!(y.dims(), [0, 5]);
        let grads = y.sum().backward();
        assert_eq!(x.grad(&grads).map(|grad| grad.dims()), Some([0, 3]));
        let of_weights = weights.grad(&grads).expect("they are part of the graph").into_data();
        assert!(of_weights.iter::<f32>().all(|value| value == 0.0) && of_weights.num_elements() == 30);
    }
}
