//! Calls, of which only the number matters, and whether they agree.

use core::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce,
    AllToAll,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) sequence: u64,
}

impl Call {
    pub(crate) fn digest(&self) -> Option<u64> {
        (self.operation == Operation::AllReduce).then_some(7)
    }

    pub(crate) fn whole(&self) -> &Self {
        self
    }

    pub(crate) fn agrees(&self, _me: usize, other: &Self, _them: usize) -> bool {
        self.operation == other.operation
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all_reduce")
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operation.fmt(f)
    }
}
