//! What goes from segment to segment.

use burn::tensor::Tensor;
use epl_core::carry;
use epl_modules::RouterLosses;

/// What crosses the boundary between two segments.
#[derive(Clone, Debug)]
pub struct DecoderCarry {
    /// The hidden states, `[rows, length, d_model]`; behind the last segment this rank's logits, `[rows, length, vocab]`.
    pub hidden: Tensor<3>,
    /// The routers' losses so far, where there are experts.
    pub losses: Option<RouterLosses>,
}

carry!(DecoderCarry { hidden, losses });
