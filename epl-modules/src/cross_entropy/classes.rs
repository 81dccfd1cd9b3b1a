//! The classes of a loss, and which of them are this rank's.

use core::ops::Range;

use burn::tensor::Tensor;
use epl_comm::{ProcessGroup, ReduceOp, unwind};

/// The classes, which of them are this rank's, and what a target means.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    pub total: usize,
    pub mine: Range<usize>,
    pub group: ProcessGroup,
    pub smoothing: f64,
    pub ignore_index: i64,
}

impl Classes {
    /// Reduces numbers of the rows over the ranks that hold the other classes.
    pub(super) fn reduce(&self, numbers: Tensor<2>, op: ReduceOp) -> Tensor<2> {
        match self.group.size() {
            1 => numbers,
            _ => self.group.all_reduce(numbers, op).unwrap_or_else(|error| unwind(error)),
        }
    }
}
