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
    fn reserve(&self) -> u64;

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

    /// [`split`](Self::split) by a rule that every member can ask for all others: `wish` gives a member's color and
    /// key. Collective.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    fn split_by(
        &self,
        sequence: u64,
        name: &str,
        wish: &dyn Fn(usize) -> (usize, usize),
    ) -> Result<Arc<dyn Transport>> {
        let (color, key) = wish(self.member());
        self.split(sequence, name, color, key)
    }

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
