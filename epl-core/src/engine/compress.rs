//! Gradients in 16 bits on their way between ranks.

use burn::tensor::{DType, Tensor};

use crate::model::precision::{HalfPrecision, cast, widen};
use crate::plan::Compression;

impl Compression {
    fn encode<const D: usize>(self, gradient: Tensor<D>) -> Tensor<D> {
        cast(widen(gradient) * self.scale, HalfPrecision::new(self.dtype).dtype())
    }

    fn decode<const D: usize>(self, received: Tensor<D>, dtype: DType) -> Tensor<D> {
        cast(widen(received) / self.scale, dtype)
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
