//! Meetings at which nothing but the calls is looked at: for transports whose data goes another way.
//!
//! Ranks that are threads find each other's calls, failures, ends, delays and circles of waits here; what carries the
//! data between their devices can find none of these.

use super::board::Post;
use super::memory::Memory;
use super::transport::LocalTransport;
use crate::error::Result;
use crate::operation::Call;

impl LocalTransport {
    /// Waits until all members have made this call, and compares them. Nobody leaves before all have come.
    ///
    /// # Errors
    ///
    /// As [`Transport::run`](crate::Transport::run).
    pub(crate) fn agree(&self, call: Box<Call>) -> Result<()> {
        self.in_turn(call, |call| {
            // SAFETY: as where data is looked at.
            let mut meeting =
                unsafe { self.board.meet(&self.world, self.member, Post { call, memory: Memory::Hidden }) }?;
            let checked = meeting.check();
            meeting.leave_early(true);
            checked
        })
    }
}
