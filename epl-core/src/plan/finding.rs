//! What was found of a segment whose layers know nothing of the tensor axis: see
//! [`LazyModel::discover`](crate::LazyModel::discover).

use core::fmt;

use serde::{Deserialize, Serialize};

/// What a tensor that leaves a segment is the whole of, where some parameters are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitSplit {
    /// Of what each rank has: it does not depend on what is cut.
    Same,
    /// The sum of what the ranks have.
    Sum,
    /// The sum of what the ranks have, but for what each of them has in full, such as a residual or a bias.
    SumBesideBase,
    /// What the ranks have, one after the other in the last dim.
    Slices,
}

/// How a segment is run in slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentSplit {
    /// The extent of the dims that are cut.
    pub extent: usize,
    /// The tensors that leave the segment, in their order.
    pub exits: Vec<ExitSplit>,
    /// The numbers of parts that its [`Carry`](crate::Carry) tells, such as the length of a `Vec`, in their order: a carry with
    /// others is refused when the segment runs, as it is not known of what its tensors are the whole.
    pub counts: Vec<usize>,
}

/// What was found of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SplitFinding {
    /// It runs in slices.
    Split(SegmentSplit),
    /// Every rank runs all of it, for this reason.
    Whole(String),
}

impl SegmentSplit {
    /// Whether it runs a second time, for what every rank has in full.
    pub fn has_base(&self) -> bool {
        self.exits.contains(&ExitSplit::SumBesideBase)
    }
}

impl fmt::Display for SegmentSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is = |exit: ExitSplit| self.exits.contains(&exit);
        let what = [
            (is(ExitSplit::Sum), "sums, all-reduced"),
            (is(ExitSplit::SumBesideBase), "sums beside a residual or a bias, all-reduced"),
            (is(ExitSplit::Slices), "slices of the last dim, all-gathered"),
        ];
        let what: Vec<&str> = what.iter().filter(|(is_some, _)| *is_some).map(|(_, what)| *what).collect();
        write!(f, "extent {} is cut, and what leaves is {}", self.extent, what.join("; "))
    }
}
