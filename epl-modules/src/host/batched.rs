//! Products of the matrices of two batches.

use burn::tensor::Tensor;

use super::product::{product, products};
use super::real::{HostFloat, Real, host_float};
use super::view::{View, tensor};

/// `a b` of plain tensors, matrix by matrix. In host memory nothing is copied whose rows or columns are contiguous, such as the
/// heads of what a linear layer gave.
///
/// # Shapes
///
/// - a: `[batch, heads, rows, depth]`, b: `[batch, heads, depth, columns]`
/// - output: `[batch, heads, rows, columns]`
pub(crate) fn matmul(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    match host_float(&a) {
        Some(HostFloat::Single) => on_host::<f32>(a, b),
        Some(HostFloat::Double) => on_host::<f64>(a, b),
        None => a.matmul(b),
    }
}

fn on_host<T: Real>(a: Tensor<4>, b: Tensor<4>) -> Tensor<4> {
    let (device, [batch, heads, rows, _], [.., columns]) = (a.device(), a.dims(), b.dims());
    let [a, b] = [a, b].map(View::<T>::of_matrices);
    let values = products(a.matrices().zip(b.matrices()).map(|(a, b)| product(a, b)).collect());
    tensor(values, [batch, heads, rows, columns], &device)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution};

    use super::*;

    #[test]
    fn batches_are_multiplied_as_burn_does_whatever_their_layout() {
        let device = Device::flex();
        let draw = |shape: [usize; 4]| Tensor::<4>::random(shape, Distribution::Default, &device);
        for [batch, heads, rows, depth, columns] in
            [[2, 3, 5, 4, 6], [1, 1, 1, 7, 1], [3, 2, 40, 33, 35], [2, 1, 0, 4, 3]]
        {
            let left = [draw([batch, heads, rows, depth]), draw([batch, rows, heads, depth]).swap_dims(1, 2)];
            let right = [
                draw([batch, heads, depth, columns]),
                draw([batch, heads, columns, depth]).swap_dims(2, 3),
                draw([batch, columns, heads, depth]).permute([0, 2, 3, 1]),
                draw([1, heads, depth, columns]).expand([batch, heads, depth, columns]),
            ];
            for (a, b) in left.into_iter().flat_map(|a| right.clone().map(|b| (a.clone(), b))) {
                let ours = matmul(a.clone(), b.clone());
                assert_eq!(ours.dims(), [batch, heads, rows, columns]);
                let far = (ours - a.matmul(b)).abs().into_data().iter::<f32>().fold(0.0, f32::max);
                assert!(far < 1e-4, "{batch} {heads} {rows} {depth} {columns}: {far:e}");
            }
        }
    }
}
