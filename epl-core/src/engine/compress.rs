//! Gradients in 16 bits on their way between ranks.

use burn::tensor::{DType, Tensor};

use crate::model::precision::{HalfPrecision, cast};
use crate::plan::Compression;

impl Compression {
    fn encode<const D: usize>(self, gradient: Tensor<D>) -> Tensor<D> {
        cast(widened(gradient) * self.scale, HalfPrecision::new(self.dtype).dtype())
    }

    fn decode<const D: usize>(self, received: Tensor<D>, dtype: DType) -> Tensor<D> {
        cast(widened(received) / self.scale, dtype)
    }
}

/// What is sent for a gradient.
pub(crate) fn encode<const D: usize>(compression: Option<Compression>, gradient: Tensor<D>) -> Tensor<D> {
    match compression {
        Some(compression) => compression.encode(gradient),
        None => gradient,
    }
}

/// The gradient, in its own type, that was received.
pub(crate) fn decode<const D: usize>(compression: Option<Compression>, received: Tensor<D>, dtype: DType) -> Tensor<D> {
    match compression {
        Some(compression) => compression.decode(received, dtype),
        None => received,
    }
}

/// A 16-bit tensor in f32, in which it may be scaled and summed; others as they are.
pub(crate) fn widened<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => cast(tensor, DType::F32),
        _ => tensor,
    }
}
