//! Meetings at which nothing but the calls is looked at: for transports whose data goes another way.
//!
//! Ranks that are threads find each other's calls, failures, ends, delays and circles of waits here; what carries the
//! data between their devices can find none of these.

use super::board::Post;
use super::memory::Memory;
use super::transport::LocalTransport;
use crate::error::Result;
use crate::host::fit::describe;
use crate::operation::Call;

impl LocalTransport {
    /// Waits until all members have made this call, and compares them. Nobody leaves before all have come.
    ///
    /// # Errors
    ///
    /// As [`Transport::run`](crate::Transport::run).
    pub(crate) fn agree(&self, call: Box<Call>) -> Result<()> {
        let met = self.in_turn(call, |call| {
            // SAFETY: `busy` is held and the number is the next one, as `in_turn` sees to; after an error the world has
            // failed, which it has looked for.
            let mut meeting =
                unsafe { self.board.meet(&self.world, self.member, Post { call, memory: Memory::Hidden }) }?;
            let checked = meeting.check();
            meeting.leave_early(true);
            checked
        });
        met.inspect_err(|error| self.fail(error))
    }

    /// Whether the world goes on.
    ///
    /// # Errors
    ///
    /// Its failure, as it is told to a rank that is in `call`.
    pub(crate) fn go_on(&self, call: &Call) -> Result<()> {
        match self.world.failure() {
            Some(failure) => Err(failure.to_error(describe(&self.board.roster.name, call))),
            None => Ok(()),
        }
    }
}
