//! What goes from segment to segment.

use burn::tensor::Tensor;
use epl_core::carry;
use epl_modules::RouterLosses;

/// What crosses the boundary between two segments.
#[derive(Clone, Debug)]
pub struct T5Carry {
    /// The hidden states, `[rows, positions, d_model]`; behind the encoder its output; behind the last segment this
    /// rank's logits.
    pub hidden: Tensor<3>,
    /// The position bias, from the first block of a stack to its last.
    pub bias: Option<Tensor<4>>,
    /// The encoder's output, inside the decoder.
    pub memory: Option<Tensor<3>>,
    /// The router's losses so far.
    pub losses: Option<RouterLosses>,
}

carry!(T5Carry { hidden, bias, memory, losses });
