//! The element type in which a formula is computed.

use burn::tensor::DType;

/// f32 at least: sums of squares and of exponentials lose too much in 16 bits.
pub(crate) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}
