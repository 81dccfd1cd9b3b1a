//! What is done to buffers before and after NCCL, by their own backend: NCCL knows rows of numbers and nothing else.

use burn::tensor::kind::Basic;
use burn::tensor::{Bool, DType, Device, Int, Tensor};

use crate::buffer::Buffer;
use crate::operation::ReduceOp;
use crate::per_member::PerMember;

/// Does something to a buffer as a flat tensor of its kind.
macro_rules! as_tensor {
    ($buffer:expr, $tensor:ident => $changed:expr) => {{
        let buffer: Buffer = $buffer;
        match buffer.dtype() {
            dtype if dtype.is_float() => {
                let $tensor = buffer.into_flat::<burn::tensor::Float>();
                Buffer::from_tensor($changed)
            }
            dtype if dtype.is_bool() => {
                let $tensor = buffer.into_flat::<Bool>();
                Buffer::from_tensor($changed)
            }
            _ => {
                let $tensor = buffer.into_flat::<Int>();
                Buffer::from_tensor($changed)
            }
        }
    }};
}

/// A buffer without elements.
pub(super) fn empty(dtype: DType, device: &Device) -> Buffer {
    match dtype {
        _ if dtype.is_float() => Buffer::from_tensor(Tensor::<1>::zeros([0], (device, dtype))),
        _ if dtype.is_bool() => Buffer::from_tensor(Tensor::<1, Int>::zeros([0], device).bool()),
        _ => Buffer::from_tensor(Tensor::<1, Int>::zeros([0], (device, dtype))),
    }
}

/// The same buffer on a device.
pub(super) fn moved(buffer: Buffer, device: &Device) -> Buffer {
    if buffer.device() == *device {
        return buffer;
    }
    as_tensor!(buffer, x => x.to_device(device))
}

/// The same numbers in another type.
pub(super) fn cast(buffer: Buffer, dtype: DType) -> Buffer {
    match buffer.dtype() {
        own if own == dtype => buffer,
        own if own.is_float() => Buffer::from_tensor(buffer.into_flat::<burn::tensor::Float>().cast(dtype)),
        _ => Buffer::from_tensor(buffer.into_flat::<Int>().cast(dtype)),
    }
}

/// A sum of floats, divided.
pub(super) fn divided(sum: Buffer, count: usize) -> Buffer {
    Buffer::from_tensor(sum.into_flat::<burn::tensor::Float>().div_scalar(count as f64))
}

/// 1 where a float is no number, 0 elsewhere.
pub(super) fn not_numbers(buffer: Buffer) -> Buffer {
    Buffer::from_tensor(buffer.into_flat::<burn::tensor::Float>().is_nan().int().cast(DType::I32))
}

/// Floats, not a number where `flags` are not 0.
pub(super) fn spoiled(buffer: Buffer, flags: Buffer) -> Buffer {
    let flags = flags.into_flat::<Int>().not_equal_elem(0);
    Buffer::from_tensor(buffer.into_flat::<burn::tensor::Float>().mask_fill(flags, f64::NAN))
}

/// The type in which numbers are reduced: f32 for 16-bit floats, which would lose a bit with every addition, unless
/// there is one addition only; 32 bits for whole numbers of 16, which NCCL has not.
pub(super) fn wide(dtype: DType, op: ReduceOp, members: usize) -> DType {
    let is_rounded_once = members <= 2 && matches!(op, ReduceOp::Sum | ReduceOp::Product);
    let is_exact = matches!(op, ReduceOp::Min | ReduceOp::Max);
    match dtype {
        DType::F16 | DType::BF16 if !is_rounded_once && !is_exact => DType::F32,
        DType::I16 => DType::I32,
        DType::U16 => DType::U32,
        other => other,
    }
}

/// One piece for each member, taken row by row from `rows` rows that are divided in this way, each in a row of its own.
pub(super) fn pieces(buffer: Buffer, rows: usize, widths: &PerMember) -> Buffer {
    if rows <= 1 || widths.total() == 0 {
        return buffer;
    }
    as_tensor!(buffer, x => divide(x, rows, widths))
}

/// The other way round: pieces of `rows` rows each, put side by side.
pub(super) fn side_by_side(buffer: Buffer, rows: usize, widths: &PerMember) -> Buffer {
    if rows <= 1 || widths.total() == 0 {
        return buffer;
    }
    as_tensor!(buffer, x => join(x, rows, widths))
}

fn divide<K: Basic>(x: Tensor<1, K>, rows: usize, widths: &PerMember) -> Tensor<1, K> {
    let total = widths.total();
    if widths.is_even() {
        return x.reshape([rows, widths.len(), widths[0]]).swap_dims(0, 1).reshape([rows * total]);
    }
    let x = x.reshape([rows, total]);
    let piece =
        |member: usize| x.clone().narrow(1, widths.before(member), widths[member]).reshape([rows * widths[member]]);
    Tensor::cat(used(widths).map(piece).collect(), 0)
}

fn join<K: Basic>(x: Tensor<1, K>, rows: usize, widths: &PerMember) -> Tensor<1, K> {
    let total = widths.total();
    if widths.is_even() {
        return x.reshape([widths.len(), rows, widths[0]]).swap_dims(0, 1).reshape([rows * total]);
    }
    let piece = |member: usize| {
        let width = widths[member];
        x.clone().narrow(0, rows * widths.before(member), rows * width).reshape([rows, width])
    };
    Tensor::cat(used(widths).map(piece).collect(), 1).reshape([rows * total])
}

/// The members that have something.
fn used(widths: &PerMember) -> impl Iterator<Item = usize> {
    (0..widths.len()).filter(|member| widths[*member] > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_put_side_by_side_again() {
        for widths in [&[2, 2, 2][..], &[1, 0, 3], &[0, 0]] {
            let widths = PerMember::from(widths);
            let values: Vec<f32> = (0..3 * widths.total()).map(|value| value as f32).collect();
            let apart = pieces(Buffer::from_values(values.clone()), 3, &widths);
            if widths == PerMember::from(&[1, 0, 3][..]) {
                let expected = [0.0, 4.0, 8.0, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 9.0, 10.0, 11.0];
                assert_eq!(apart.clone().into_values::<f32>(), expected);
            }
            assert_eq!(side_by_side(apart, 3, &widths).into_values::<f32>(), values);
        }
    }

    #[test]
    fn sixteen_bits_are_summed_in_more_unless_one_addition_is_all() {
        for dtype in [DType::F16, DType::BF16] {
            assert_eq!(wide(dtype, ReduceOp::Sum, 2), dtype);
            assert_eq!(wide(dtype, ReduceOp::Sum, 3), DType::F32);
            assert_eq!(wide(dtype, ReduceOp::Mean, 2), DType::F32);
            assert_eq!(wide(dtype, ReduceOp::Max, 3), dtype);
        }
        assert_eq!((wide(DType::I16, ReduceOp::Max, 2), wide(DType::F32, ReduceOp::Sum, 9)), (DType::I32, DType::F32));
    }
}
