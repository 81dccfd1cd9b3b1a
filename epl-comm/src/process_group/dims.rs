//! Dims taken apart and put together: a transport moves pieces, each in a row, one after the other.
//!
//! ```text
//! a tensor of 2 rows, divided along its last dim      the pieces of three members
//!   a a b c c c                                         a a a a | b b | c c c c c c
//!   a a b c c c
//! ```
//!
//! A transport that [`moves_rows`](crate::Transport::moves_rows) does without.

use burn::tensor::Tensor;
use burn::tensor::kind::Basic;

use crate::per_member::PerMember;

/// The pieces of a tensor along a dim, one after the other.
pub(super) fn apart<const D: usize, K: Basic>(x: Tensor<D, K>, dim: usize, sizes: &PerMember) -> Tensor<1, K> {
    let shape = x.dims();
    let (rows, columns): (usize, usize) = (shape[..dim].iter().product(), shape[dim + 1..].iter().product());
    let total: usize = shape.iter().product();
    if total == 0 {
        // In a reshape, 0 would stand for the old extent.
        return Tensor::zeros([0], (&x.device(), x.dtype()));
    }
    let x = x.reshape([rows, shape[dim] * columns]);
    if sizes.is_even() {
        // One copy, made by the transport.
        return x.reshape([rows, sizes.len(), sizes[0] * columns]).swap_dims(0, 1).reshape([total]);
    }
    let widths = sizes.times(columns);
    let piece = |member: usize| {
        let width = widths[member];
        x.clone().narrow(1, widths.before(member), width).reshape([rows * width])
    };
    Tensor::cat(used(&widths).map(piece).collect(), 0)
}

/// Pieces of so many rows, each of these widths, put side by side.
pub(super) fn side_by_side<K: Basic>(x: Tensor<1, K>, rows: usize, widths: &PerMember) -> Tensor<1, K> {
    let total = rows * widths.total();
    if total == 0 {
        return x;
    }
    if widths.is_even() {
        return x.reshape([widths.len(), rows, widths[0]]).swap_dims(0, 1).reshape([total]);
    }
    let piece = |member: usize| {
        let width = widths[member];
        x.clone().narrow(0, rows * widths.before(member), rows * width).reshape([rows, width])
    };
    Tensor::cat(used(widths).map(piece).collect(), 1).reshape([total])
}

/// The members that have something.
fn used(widths: &PerMember) -> impl Iterator<Item = usize> {
    (0..widths.len()).filter(|member| widths[*member] > 0)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Int};

    use super::*;

    #[test]
    fn pieces_are_put_side_by_side_again() {
        for widths in [&[2, 2, 2][..], &[1, 0, 3], &[0, 0]] {
            let widths = PerMember::from(widths);
            let len = 3 * widths.total();
            let values: Vec<f32> = (0..len).map(|value| value as f32).collect();
            let whole = Tensor::<1>::from_data(&*values, &Device::flex());
            let whole =
                if len == 0 { Tensor::zeros([3, 0], &Device::flex()) } else { whole.reshape([3, widths.total()]) };
            let apart = apart::<2, _>(whole, 1, &widths);
            if widths == PerMember::from(&[1, 0, 3][..]) {
                let expected = [0.0, 4.0, 8.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 9.0, 10.0, 11.0];
                assert_eq!(apart.clone().into_data().iter::<f32>().collect::<Vec<_>>(), expected);
            }
            let again = side_by_side(apart, 3, &widths).into_data();
            assert_eq!(again.iter::<f32>().collect::<Vec<_>>(), values);
        }
    }

    #[test]
    fn what_is_taken_apart_is_put_together_again() {
        let widths = PerMember::from(&[1, 0, 3, 2][..]);
        let numbers = || Tensor::<1, Int>::arange(0..12, &Device::flex());
        let values = |x: Tensor<1, Int>| x.into_data().iter::<i64>().collect::<Vec<_>>();
        let parts = apart(numbers().reshape([2, 6]), 1, &widths);
        assert_eq!(values(parts.clone()), [0, 6, 1, 2, 3, 7, 8, 9, 4, 5, 10, 11]);
        assert_eq!(values(side_by_side(parts, 2, &widths)), (0..12).collect::<Vec<_>>());
    }
}
