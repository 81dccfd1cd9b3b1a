//! Sums over rows on a device.

use burn::tensor::Tensor;

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

#[cfg(test)]
pub(crate) mod tests {
    use burn::tensor::{DType, Device, TensorData};

    use super::*;

    pub(crate) fn numbers(shape: [usize; 2]) -> Tensor<2> {
        let values: Vec<f64> = (0..shape[0] * shape[1]).map(|at| ((at * 37) as f64).sin()).collect();
        Tensor::from_data(TensorData::new(values, shape), (&Device::default().autodiff(), DType::F64))
    }

    pub(crate) fn assert_near(ours: Tensor<1>, exact: Tensor<1>) {
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
}
