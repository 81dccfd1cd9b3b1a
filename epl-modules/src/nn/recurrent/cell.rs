//! The cell of an LSTM with the usual functions, in host memory.

use burn::tensor::Tensor;
use epl_comm::custom_vjp;
use multiversion::multiversion;

use crate::host::matrix::Matrix;
use crate::host::{self, HostFloat, Owned, Real, View, host_float};

/// What follows the products of a step, as one operation where tensors lie in host memory: it is else a dozen of them, and
/// some thirty in backward, over a few kilobytes each. Gives the cell state and the hidden state; `None` elsewhere.
///
/// ```text
/// cell' = σ(forget) cell + σ(input) tanh(candidate)        hidden' = σ(output) tanh(cell')
/// ```
///
/// # Shapes
///
/// - products: `[rows, 4 * d_hidden]`: input gate, output gate, candidate, forget gate
/// - cell, and both results: `[rows, d_hidden]`
pub(super) fn lstm_cell(products: &Tensor<2>, cell: &Tensor<2>) -> Option<[Tensor<2>; 2]> {
    let (float, [rows, d_hidden]) = (host_float(products)?, cell.dims());
    // A state of one row, which is broadcast, is left to tensors.
    if products.dims() != [rows, 4 * d_hidden] || cell.dtype() != products.dtype() || rows * d_hidden == 0 {
        return None;
    }
    let (products, cell) = (products.clone(), cell.clone());
    let states = match float {
        HostFloat::Single => states::<f32>(products, cell),
        HostFloat::Double => states::<f64>(products, cell),
    };
    Some([0, 1].map(|state| states.clone().narrow(1, state * d_hidden, d_hidden)))
}

/// Cell state and hidden state side by side.
fn states<T: Real>(products: Tensor<2>, cell: Tensor<2>) -> Tensor<2> {
    custom_vjp(
        (products, cell),
        |(products, cell)| {
            let (device, [rows, width]) = (cell.device(), cell.dims());
            let before = View::<T>::of_rows(cell.clone());
            let mut gates = Owned::<T>::take(products);
            let mut states = vec![T::ZERO; rows * 2 * width];
            let block = host::rows_a_task(4 * width);
            let (gate_block, state_block) = (block * 4 * width, block * 2 * width);
            host::for_blocks2((gates.slice_mut(), gate_block), (&mut states, state_block), |index, gates, states| {
                forward(before.matrix().rows(index * block, states.len() / (2 * width)), gates, states);
            });
            let gates: Tensor<2> = gates.into_tensor(&device);
            let states = host::tensor(states, [rows, 2 * width], &device);
            (states.clone(), (gates, states, cell))
        },
        |(gates, states, cell), grad| {
            let (device, [rows, width]) = (cell.device(), cell.dims());
            let before = View::<T>::of_rows(cell);
            let [states, grad] = [states, grad].map(View::<T>::new);
            let mut gates = Owned::<T>::take(gates);
            let mut of_cell = vec![T::ZERO; rows * width];
            let block = host::rows_a_task(4 * width);
            let blocks = ((gates.slice_mut(), block * 4 * width), (of_cell.as_mut_slice(), block * width));
            host::for_blocks2(blocks.0, blocks.1, |index, gates, of_cell| {
                let count = of_cell.len() / width;
                let [states, grad] =
                    [&states, &grad].map(|x| &x.slice()[index * block * 2 * width..][..count * 2 * width]);
                backward(before.matrix().rows(index * block, count), states, grad, gates, of_cell);
            });
            (Some(gates.into_tensor(&device)), Some(host::tensor(of_cell, [rows, width], &device)))
        },
    )
}

/// Makes the gates' values of the products, and the states.
#[multiversion(targets = "simd")]
fn forward<T: Real>(before: Matrix<T>, gates: &mut [T], states: &mut [T]) {
    let [_, width] = before.sizes();
    let rows = gates.chunks_exact_mut(4 * width).zip(states.chunks_exact_mut(2 * width));
    for (row, (gates, states)) in rows.enumerate() {
        let (before, (cell, hidden)) = (before.row(row), states.split_at_mut(width));
        let (enters, rest) = gates.split_at_mut(width);
        let (leaves, rest) = rest.split_at_mut(width);
        let (candidate, stays) = rest.split_at_mut(width);
        for at in 0..width {
            enters[at] = enters[at].sigmoid();
            leaves[at] = leaves[at].sigmoid();
            candidate[at] = candidate[at].tanh();
            stays[at] = stays[at].sigmoid();
            cell[at] = stays[at] * before[at] + enters[at] * candidate[at];
            hidden[at] = leaves[at] * cell[at].tanh();
        }
    }
}

/// Replaces the gates' values by the gradients of the products.
#[multiversion(targets = "simd")]
fn backward<T: Real>(before: Matrix<T>, states: &[T], grad: &[T], gates: &mut [T], of_cell: &mut [T]) {
    let [_, width] = before.sizes();
    let rows = gates.chunks_exact_mut(4 * width).zip(of_cell.chunks_exact_mut(width));
    let given = states.chunks_exact(2 * width).zip(grad.chunks_exact(2 * width));
    for (row, ((gates, of_cell), (states, grad))) in rows.zip(given).enumerate() {
        let (before, cell) = (before.row(row), &states[..width]);
        let (grad_cell, grad_hidden) = grad.split_at(width);
        let (enters, rest) = gates.split_at_mut(width);
        let (leaves, rest) = rest.split_at_mut(width);
        let (candidate, stays) = rest.split_at_mut(width);
        for at in 0..width {
            let out = cell[at].tanh();
            let sum = grad_cell[at] + grad_hidden[at] * leaves[at] * (T::ONE - out * out);
            of_cell[at] = sum * stays[at];
            let (i, o, g, f) = (enters[at], leaves[at], candidate[at], stays[at]);
            enters[at] = sum * g * i * (T::ONE - i);
            leaves[at] = grad_hidden[at] * out * o * (T::ONE - o);
            candidate[at] = sum * i * (T::ONE - g * g);
            stays[at] = sum * before[at] * f * (T::ONE - f);
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution};

    use super::*;

    #[test]
    fn a_state_may_lie_by_columns() {
        let device = Device::flex().autodiff();
        let draw = |shape: [usize; 2]| Tensor::<2>::random(shape, Distribution::Default, &device);
        let (products, cell) = (draw([5, 12]), draw([3, 5]).transpose());
        let of = |cell: Tensor<2>| {
            let (products, cell) = (products.clone().require_grad(), cell.detach().require_grad());
            let [after, hidden] = lstm_cell(&products, &cell).expect("it lies in host memory");
            let gradients = (after.clone() * 2.0 + hidden.clone()).sum().backward();
            [after.inner(), hidden.inner(), products.grad(&gradients).unwrap(), cell.grad(&gradients).unwrap()]
        };
        let in_order = Tensor::from_data(cell.clone().into_data(), &device);
        for (by_columns, by_rows) in of(cell).into_iter().zip(of(in_order)) {
            assert_eq!(by_columns.into_data(), by_rows.into_data());
        }
    }
}
