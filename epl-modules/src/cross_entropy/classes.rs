//! The classes of a loss, and which of them are this rank's.

use core::ops::Range;

use burn::tensor::Tensor;
use epl_comm::{ProcessGroup, ReduceOp, unwind};

use super::targets::Targets;

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
    /// What is wrong with the target of a row that is neither a class nor ignored.
    pub(super) fn unknown(&self, row: usize, target: i64) -> String {
        format!(
            "the target of row {row} is {target}, but there are {} classes; a row that does not count has the target {}",
            self.total, self.ignore_index
        )
    }

    /// What is wrong with the first target that is neither a class nor ignored, if one is: waits for the device.
    pub(super) fn look(&self, targets: Targets) -> Option<String> {
        let is_class = |id: i64| usize::try_from(id).is_ok_and(|id| id < self.total);
        let classes: Vec<i64> = targets.classes.into_data().iter().collect();
        let others = targets.mixed.map(|mixed| mixed.others.into_data().iter::<i64>().collect::<Vec<_>>());
        let counted = classes.iter().enumerate().filter(|(_, id)| **id != self.ignore_index);
        let mut ids = counted.flat_map(|(row, id)| {
            [Some(*id), others.as_ref().map(|others| others[row])].into_iter().flatten().map(move |id| (row, id))
        });
        ids.find(|(_, id)| !is_class(*id)).map(|(row, id)| self.unknown(row, id))
    }

    /// Reduces numbers of the rows over the ranks that hold the other classes.
    pub(super) fn reduce(&self, numbers: Tensor<2>, op: ReduceOp) -> Tensor<2> {
        match self.group.size() {
            1 => numbers,
            _ => self.group.all_reduce(numbers, op).unwrap_or_else(|error| unwind(error)),
        }
    }
}
