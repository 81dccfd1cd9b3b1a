//! Gradients in 16 bits on their way between ranks.

use burn::tensor::{DType, FloatDType, Tensor};

use crate::config::{CommunicationConfig, HalfDtype};

/// A 16-bit type and the factor that brings gradients into its range.
///
/// A gradient is sent as `cast(gradient · scale)` and received as `sum ÷ scale`. The sums are taken in f32 and
/// rounded once more, so that an element is off by at most ε · Σ|gradients of the ranks| (ε = 2⁻¹⁰ for f16, 2⁻⁷ for
/// bf16), plus, for f16, 2⁻²⁴ ÷ scale a rank where it falls below the smallest normal number. This is
/// `communication.fp16` of EPL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compression {
    /// The type on the way.
    pub dtype: HalfDtype,
    /// The factor; a power of two is exact.
    pub scale: f64,
}

impl Compression {
    /// What the options `communication.fp16*` say.
    pub fn from_config(config: &CommunicationConfig) -> Option<Self> {
        config.fp16.then_some(Self { dtype: config.fp16_dtype, scale: config.fp16_scale })
    }

    fn encode<const D: usize>(self, gradient: Tensor<D>) -> Tensor<D> {
        let dtype = match self.dtype {
            HalfDtype::F16 => FloatDType::F16,
            HalfDtype::Bf16 => FloatDType::BF16,
        };
        (widened(gradient) * self.scale).cast(dtype)
    }

    fn decode<const D: usize>(self, received: Tensor<D>, dtype: DType) -> Tensor<D> {
        (widened(received) / self.scale).cast(dtype)
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
        DType::F16 | DType::BF16 => tensor.cast(FloatDType::F32),
        _ => tensor,
    }
}
