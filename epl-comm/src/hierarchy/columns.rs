//! Parts of a buffer in another order, on its device.

use core::ops::Range;

use burn::tensor::kind::{Autodiff, Basic};
use burn::tensor::{Bool, DType, Float, Int, Tensor};

use crate::buffer::Buffer;

/// Calls a function of a kind of tensor with the kind that a buffer is of.
macro_rules! with_kind {
    ($buffer:expr, $K:ident => $body:expr) => {
        match $buffer.dtype() {
            dtype if dtype.is_float() => {
                type $K = Float;
                $body
            }
            dtype if dtype.is_bool() => {
                type $K = Bool;
                $body
            }
            _ => {
                type $K = Int;
                $body
            }
        }
    };
}

/// The columns of a matrix, chosen and in order.
pub(super) fn columns(buffer: Buffer, rows: usize, chosen: &[Range<usize>]) -> Buffer {
    let len = buffer.num_elements();
    let is_in_order = chosen.windows(2).all(|pair| pair[0].end == pair[1].start);
    let all = chosen.iter().map(ExactSizeIterator::len).sum::<usize>() * rows == len;
    if len == 0 || (is_in_order && all) {
        return buffer;
    }
    with_kind!(buffer, K => {
        let x = buffer.into_flat::<K>().reshape([rows, len / rows]);
        let part = |columns: &Range<usize>| x.clone().narrow(1, columns.start, columns.len());
        joined::<2, K>(chosen.iter().filter(|columns| !columns.is_empty()).map(part).collect(), 1)
    })
}

/// The parts of a matrix of these widths, each contiguous, one after the other.
pub(super) fn apart(buffer: Buffer, rows: usize, widths: impl Iterator<Item = usize>) -> Buffer {
    let len = buffer.num_elements();
    if len == 0 || rows == 1 {
        return buffer;
    }
    with_kind!(buffer, K => {
        let x = buffer.into_flat::<K>().reshape([rows, len / rows]);
        let mut start = 0;
        let part = |width: usize| {
            start += width;
            x.clone().narrow(1, start - width, width).reshape([rows * width])
        };
        joined::<1, K>(widths.filter(|width| *width > 0).map(part).collect(), 0)
    })
}

/// What [`apart`] has taken apart, a matrix again.
pub(super) fn side_by_side(buffer: Buffer, rows: usize, widths: impl Iterator<Item = usize>) -> Buffer {
    let len = buffer.num_elements();
    if len == 0 || rows == 1 {
        return buffer;
    }
    with_kind!(buffer, K => {
        let x = buffer.into_flat::<K>();
        let mut start = 0;
        let part = |width: usize| {
            start += width * rows;
            x.clone().narrow(0, start - width * rows, width * rows).reshape([rows, width])
        };
        joined::<2, K>(widths.filter(|width| *width > 0).map(part).collect(), 1)
    })
}

fn joined<const D: usize, K: Basic + Autodiff>(parts: Vec<Tensor<D, K>>, dim: usize) -> Buffer {
    let whole = Tensor::cat(parts, dim);
    let len = whole.shape().num_elements();
    Buffer::from_tensor(whole.reshape([len]))
}

/// Nothing, of the buffer's kind and on its device.
pub(super) fn nothing_like(buffer: &Buffer) -> Buffer {
    let (device, dtype) = (buffer.device(), buffer.dtype());
    with_kind!(buffer, K => Buffer::from_tensor(Tensor::<1, K>::zeros([0], (&device, dtype))))
}

/// Floats of another width.
pub(super) fn cast(buffer: Buffer, dtype: DType) -> Buffer {
    if buffer.dtype() == dtype {
        return buffer;
    }
    Buffer::from_tensor(buffer.into_flat::<Float>().cast(dtype))
}

/// Floats, divided by a number.
pub(super) fn divided(buffer: Buffer, by: usize) -> Buffer {
    Buffer::from_tensor(buffer.into_flat::<Float>().div_scalar(by as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Buffer {
        Buffer::from_values((0..12).collect::<Vec<i64>>())
    }

    #[test]
    fn columns_come_in_the_order_they_are_chosen_in() {
        let chosen = columns(numbers(), 2, &[4..6, 0..0, 1..2]).into_values::<i64>();
        assert_eq!(chosen, [4, 5, 1, 10, 11, 7]);
        assert_eq!(columns(numbers(), 2, &[0..2, 2..6]).into_values::<i64>(), (0..12).collect::<Vec<_>>());
        assert_eq!(columns(numbers(), 2, &[0..2]).into_values::<i64>(), [0, 1, 6, 7]);
    }

    #[test]
    fn what_is_taken_apart_is_put_together_again() {
        let widths = || [1, 0, 3, 2].into_iter();
        let parts = apart(numbers(), 2, widths());
        assert_eq!(parts.clone().into_values::<i64>(), [0, 6, 1, 2, 3, 7, 8, 9, 4, 5, 10, 11]);
        assert_eq!(side_by_side(parts, 2, widths()).into_values::<i64>(), (0..12).collect::<Vec<_>>());
    }
}
