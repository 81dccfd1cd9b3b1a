//! Several communicators of one group.

use crate::error::{Error, Result};
use crate::process_group::ProcessGroup;

/// Communicators of the same ranks, with a helper thread each, so that started collectives may be in flight together.
/// There are no more of them than that is of use ([`Transport::lanes`](crate::Transport::lanes)): where the ranks keep
/// all cores busy already, one after the other is as fast.
///
/// ```text
/// communicator 0   [bucket 0      ][bucket 2   ]
/// communicator 1   [bucket 1   ][bucket 3         ]
/// ```
///
/// A collective's communicator is chosen by its number, which is the same on every rank: never by which one is free.
/// The pool is one queue to its users: every rank starts the same collectives in the same order over all of it.
#[derive(Clone, Debug)]
pub struct Pool {
    communicators: Vec<ProcessGroup>,
}

impl Pool {
    /// Up to `size` communicators of the ranks of `group`, beside the group itself. Collective.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a size of 0; otherwise as [`ProcessGroup::split`].
    pub fn new(group: &ProcessGroup, size: usize) -> Result<Self> {
        if size == 0 {
            return Err(Error::invalid("a pool of 0 communicators; it needs at least 1"));
        }
        let communicator = |number| group.split_by(&format!("{} {number}", group.name()), |member| (0, member));
        let communicators = (0..size.min(group.lanes().max(1))).map(communicator);
        Ok(Self { communicators: communicators.collect::<Result<_>>()? })
    }

    /// The communicator of the collective with this number.
    pub fn communicator(&self, number: usize) -> &ProcessGroup {
        &self.communicators[number % self.communicators.len()]
    }

    /// How many ranks each communicator has.
    pub fn ranks(&self) -> usize {
        self.communicators[0].size()
    }
}
