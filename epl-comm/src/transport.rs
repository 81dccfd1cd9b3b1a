//! What moves buffers between ranks.

use core::fmt::Debug;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::rank::Rank;

/// One rank's place in one group, over some medium: `local` threads today.
///
/// Below [`ProcessGroup`](crate::ProcessGroup), which knows tensors, graphs, threads and order; a transport knows
/// buffers only. All methods block; a group calls [`run`](Self::run) from one thread at a time, in the order of the
/// calls' numbers.
///
/// A transport must never leave a member waiting for one that cannot come any more.
pub trait Transport: Debug + Send + Sync {
    /// The name of the group.
    fn name(&self) -> &str;

    /// This rank's position in the group.
    fn member(&self) -> usize;

    /// The ranks of the group, in the order of its members.
    fn members(&self) -> &[Rank];

    /// Takes the next number of a call in this group. Whoever takes a number runs a call with it: peers wait for it.
    fn reserve(&self, operation: Operation) -> u64;

    /// Runs one collective and returns this member's result, possibly flat.
    ///
    /// # Errors
    ///
    /// [`Error::Mismatch`] on every member when their calls do not fit together; [`Error::Peer`] when another rank
    /// failed or left. After an error the whole world is over.
    fn run(&self, call: Call, buffer: Buffer) -> Result<Buffer>;

    /// Divides the group: members with the same `color` form a new one, in the order of `key`, then of their
    /// position here. Collective; `sequence` is the number taken for it.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>>;

    /// [`split`](Self::split) where every member knows all members' colors and keys, which are `wishes`. Collective.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        let (color, key) = wishes[self.member()];
        self.split(sequence, name, color, key)
    }

    /// The way from one member to another, of which this rank is one end: a group of two, in which member 0 sends and
    /// member 1 receives. Not collective: each end asks for it when it first needs it. Both ends' calls over a link
    /// are numbered apart from the group's.
    ///
    /// # Errors
    ///
    /// When the medium cannot make one.
    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>>;

    /// Calls `sleep`, in which the calling thread blocks until call `sequence`, run by another thread, is over.
    ///
    /// A transport that looks for ranks that wait for each other learns of the wait here.
    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        let _ = (operation, sequence);
        sleep();
    }

    /// Ends the world: every rank that waits, or will wait, in any group is released with `cause`.
    fn abort(&self, cause: &Error);
}

/// The members that form a group with member `me`, in the order of the new group, and its position there; `wishes` are
/// all members' colors and keys.
pub(crate) fn of_one_color(wishes: &[(usize, usize)], me: usize) -> (Vec<usize>, usize) {
    let mut chosen: Vec<usize> = (0..wishes.len()).filter(|member| wishes[*member].0 == wishes[me].0).collect();
    chosen.sort_by_key(|member| (wishes[*member].1, *member));
    let position = chosen.iter().position(|member| *member == me).expect("a member has its own color");
    (chosen, position)
}

/// The name of the link from one member of a group to another.
pub(crate) fn link_name(group: &str, from: usize, to: usize) -> String {
    format!("{group}, {from} to {to}")
}
