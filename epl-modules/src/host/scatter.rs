//! Rows that are added up by index, on the threads of the current pool.

use super::real::Real;
use super::rows::{new_blocks, new_blocks2, rows_a_task, sum_of};

/// The rows of each index added up, in their order, each times its weight: the same bits on any number of threads.
///
/// # Shapes
///
/// - rows: `[indices, width]`, weights: `[indices]`
/// - output: `[count, width]`; zeros where no index is
pub(crate) fn scatter_add<T: Real>(
    [count, width]: [usize; 2],
    indices: &[usize],
    rows: &[T],
    weights: Option<&[T]>,
) -> Vec<T> {
    let block_rows = rows_a_task(width);
    // Of each block of rows of the output, what is added to it.
    let mut by_block = vec![Vec::new(); count.div_ceil(block_rows)];
    for (number, index) in indices.iter().enumerate() {
        by_block[index / block_rows].push((index % block_rows, number));
    }
    new_blocks(count * width, block_rows * width, |block, sums| {
        for (index, number) in &by_block[block] {
            let (sum, row) = (&mut sums[index * width..][..width], &rows[number * width..][..width]);
            let weight = weights.map_or(T::ONE, |weights| weights[*number]);
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += *x * weight);
        }
    })
}

/// The gradients of rows and weights of a [`scatter_add`], from that of its output.
///
/// # Shapes
///
/// - rows: `[indices, width]`, weights: `[indices]`, grad: `[count, width]`
pub(crate) fn scatter_add_backward<T: Real>(
    width: usize,
    indices: &[usize],
    (rows, weights): (&[T], &[T]),
    grad: &[T],
) -> (Vec<T>, Vec<T>) {
    let block_rows = rows_a_task(width);
    let mut of_weights = vec![T::ZERO; weights.len()];
    if width == 0 {
        return (Vec::new(), of_weights);
    }
    let of_rows =
        new_blocks2((rows.len(), block_rows * width), (&mut of_weights, block_rows), |block, of_rows, of_weights| {
            for (at, of_weight) in of_weights.iter_mut().enumerate() {
                let number = block * block_rows + at;
                let (row, grad) = (&rows[number * width..][..width], &grad[indices[number] * width..][..width]);
                *of_weight = sum_of(row, grad, |x, g| x * g);
                of_rows[at * width..][..width].iter_mut().zip(grad).for_each(|(of_x, g)| *of_x = *g * weights[number]);
            }
        });
    (of_rows, of_weights)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData};

    use super::*;

    #[test]
    fn weighted_rows_and_their_gradients_are_those_of_burns_operations_on_any_number_of_threads() {
        let values = |count: usize, step: f64| (0..count).map(|at| (at as f64 * step).sin()).collect::<Vec<f64>>();
        // No row, one, rows of several blocks, rows that are no index's, rows of no element.
        for [count, width, indices] in [[3, 4, 0], [1, 1, 1], [700, 60, 900], [5000, 7, 300], [9, 40_000, 4], [6, 0, 5]]
        {
            let device = Device::flex().autodiff();
            let tensor = |values: &[f64], shape: [usize; 2]| {
                Tensor::<2>::from_data(TensorData::new(values.to_vec(), shape), (&device, burn::tensor::DType::F64))
            };
            let at: Vec<usize> = (0..indices).map(|number| number * number * 31 % count).collect();
            let of_index = Tensor::<1, Int>::from_ints(
                TensorData::new(at.iter().map(|at| *at as i64).collect::<Vec<_>>(), [indices]),
                &device,
            );
            let (rows, weights, grad) =
                (values(indices * width, 0.7), values(indices, 1.3), values(count * width, 0.3));
            let [x, w] = [tensor(&rows, [indices, width]), tensor(&weights, [indices, 1])].map(Tensor::require_grad);
            let zeros = tensor(&vec![0.0; count * width], [count, width]);
            let exact = zeros.select_assign(0, of_index, x.clone() * w.clone(), IndexingUpdateOp::Add);
            let grads = (exact.clone() * tensor(&grad, [count, width])).sum().backward();
            let exact = [Some(exact.inner()), x.grad(&grads), w.grad(&grads)]
                .map(|exact| exact.map_or(Vec::new(), |exact| exact.into_data().iter::<f64>().collect()));
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| {
                    let sums = scatter_add([count, width], &at, &rows, Some(&weights));
                    let (of_rows, of_weights) = scatter_add_backward(width, &at, (&rows, &weights), &grad);
                    [sums, of_rows, of_weights]
                })
            };
            let ours = on(1);
            for threads in [2, 5] {
                assert_eq!(on(threads), ours, "the bits on {threads} threads");
            }
            assert_eq!(ours[0], exact[0], "added in the same order");
            for (ours, exact) in ours.iter().zip(&exact) {
                assert_eq!(ours.len(), exact.len());
                let far = epl_testing::largest(ours.iter().zip(exact).map(|(a, b)| (a - b).abs()));
                assert!(far < 1e-10, "{indices} rows of {width} to {count}: {far:e}");
            }
        }
    }
}
