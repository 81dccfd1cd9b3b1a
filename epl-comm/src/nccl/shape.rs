//! What is computed before and after NCCL, by the buffers' own backend: NCCL has fewer types and reductions.

use burn::tensor::{DType, Float, Int};

use crate::buffer::Buffer;
use crate::operation::ReduceOp;

/// 1 where a float is no number, 0 elsewhere.
pub(super) fn not_numbers(buffer: Buffer) -> Buffer {
    Buffer::from_tensor(buffer.into_flat::<Float>().is_nan().int().cast(DType::I32))
}

/// Floats, not a number where `flags` are not 0.
pub(super) fn spoiled(buffer: Buffer, flags: Buffer) -> Buffer {
    let flags = flags.into_flat::<Int>().not_equal_elem(0);
    Buffer::from_tensor(buffer.into_flat::<Float>().mask_fill(flags, f64::NAN))
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

#[cfg(test)]
mod tests {
    use super::*;

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
