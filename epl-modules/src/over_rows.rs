//! Sums over rows on a device.

use burn::tensor::Tensor;
use epl_comm::custom_vjp_needed;
use epl_core::model::precision::{cast, widen};

/// Rows that are added one after the other.
const BLOCK: usize = 256;

/// The sum over the rows: of blocks of rows first, as a device adds the rows of a column one after the other.
///
/// # Shapes
///
/// - x: `[rows, columns]`
/// - output: `[columns]`
pub(crate) fn sum_over_rows(x: Tensor<2>) -> Tensor<1> {
    let [rows, columns] = x.dims();
    // Of a block that divides the rows: a slice of them would be a copy.
    let block = (2..=BLOCK).rev().find(|block| rows > BLOCK && rows.is_multiple_of(*block));
    let sums = match block {
        Some(block) => x.reshape([rows / block, block, columns]).sum_dim(1).reshape([rows / block, columns]),
        None => x,
    };
    sums.sum_dim(0).reshape([columns])
}

/// `y + bias`, where the gradient of the bias is a sum in f32 at least.
///
/// # Shapes
///
/// - y and output: `[rows, columns]`
/// - bias: `[columns]`
pub(crate) fn plus_bias(y: Tensor<2>, bias: Tensor<1>) -> Tensor<2> {
    custom_vjp_needed(
        (y, bias),
        |(y, bias)| (y + bias.unsqueeze(), ()),
        |(), grad, [_, of_bias]| {
            let of_bias = of_bias.then(|| cast(sum_over_rows(widen(grad.clone())), grad.dtype()));
            (Some(grad), of_bias)
        },
    )
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, TensorData};

    use super::*;

    fn numbers(shape: [usize; 2]) -> Tensor<2> {
        let values: Vec<f64> = (0..shape[0] * shape[1]).map(|at| ((at * 37) as f64).sin()).collect();
        Tensor::from_data(TensorData::new(values, shape), (&Device::default().autodiff(), DType::F64))
    }

    fn assert_near(ours: Tensor<1>, exact: Tensor<1>) {
        assert_eq!(ours.dims(), exact.dims());
        let pairs: Vec<(f64, f64)> = ours.into_data().iter().zip(exact.into_data().iter()).collect();
        assert!(pairs.iter().all(|(ours, exact)| (ours - exact).abs() < 1e-11 * (1.0 + exact.abs())), "{pairs:?}");
    }

    #[test]
    fn any_number_of_rows_is_summed() {
        // None, fewer than a block, one block, a prime number, a number without a large factor, many blocks.
        for rows in [0, 1, 255, 256, 257, 514, 1024, 8192] {
            let x = numbers([rows, 3]);
            assert_near(sum_over_rows(x.clone().inner()), x.inner().sum_dim(0).reshape([3]));
        }
    }

    #[test]
    fn a_bias_has_the_gradient_of_a_broadcast_sum() {
        let [y, seed] = [numbers([600, 5]), numbers([600, 5]) * 3.0].map(Tensor::inner);
        let bias = numbers([1, 5]).inner().reshape([5]);
        let through = |add: fn(Tensor<2>, Tensor<1>) -> Tensor<2>| {
            let y = Tensor::from_inner(y.clone()).require_grad();
            let bias = Tensor::from_inner(bias.clone()).require_grad();
            let sum = add(y.clone(), bias.clone());
            let grads = (sum.clone() * Tensor::from_inner(seed.clone())).sum().backward();
            let of_y = y.grad(&grads).expect("it takes part");
            [sum.inner().flatten(0, 1), of_y.flatten(0, 1), bias.grad(&grads).expect("it takes part")]
        };
        let ours = through(plus_bias);
        let exact = through(|y, bias| y + bias.unsqueeze());
        ours.into_iter().zip(exact).for_each(|(ours, exact)| assert_near(ours, exact));
    }
}
