//! What goes from segment to segment.

use burn::tensor::Tensor;
use epl_core::carry;

/// What crosses the boundary between two segments. The mask does not: every segment takes it from the batch.
#[derive(Clone, Debug)]
pub struct BertCarry {
    /// The hidden states, `[rows, length, d_model]`; behind the last segment this rank's logits.
    pub hidden: Tensor<3>,
    /// Behind the last segment of a [`Pretraining`](super::Pretraining) head the logits of its rows, `[rows, 1, 2]`.
    pub sentence: Option<Tensor<3>>,
}

carry!(BertCarry { hidden, sentence });
