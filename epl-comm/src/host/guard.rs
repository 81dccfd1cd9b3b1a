//! What every transport does around a call, whatever moves its data: calls of a member come one at a time and in their
//! order, and whoever fails in one ends the world.

use core::borrow::Borrow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result, message_of};
use crate::operation::Call;

/// Lets one member of a group make its calls one at a time, in the order of their numbers.
#[derive(Debug, Default)]
pub(crate) struct CallGuard {
    /// True during a call; and for ever after one that panicked.
    is_taken: AtomicBool,
    /// The number of the last call that came to a good end.
    last: AtomicU64,
}

impl CallGuard {
    /// Runs a call of the group `name` if it is this member's turn.
    ///
    /// # Errors
    ///
    /// Those of `goes_on`, which says whether the world does; [`Error::Invalid`] when another thread is in a call, or another
    /// call is due; those of `attempt`.
    pub(crate) fn take<C: Borrow<Call>, T>(
        &self,
        name: &str,
        call: C,
        goes_on: impl FnOnce(&Call) -> Result<()>,
        attempt: impl FnOnce(C) -> Result<T>,
    ) -> Result<T> {
        let sequence = call.borrow().sequence;
        let has_turn = !self.is_taken.swap(true, Ordering::Acquire);
        // The world is looked at once the turn is taken: whoever gave it back after a failure has seen that before.
        let goes_on = goes_on(call.borrow()).and_then(|()| self.check(name, sequence, has_turn));
        let result = goes_on.and_then(|()| attempt(call));
        if has_turn {
            if result.is_ok() {
                self.last.store(sequence, Ordering::Relaxed);
            }
            self.is_taken.store(false, Ordering::Release);
        }
        result
    }

    fn check(&self, name: &str, sequence: u64, has_turn: bool) -> Result<()> {
        if !has_turn {
            return Err(used_by_two(name));
        }
        let due = self.last.load(Ordering::Relaxed) + 1;
        if sequence != due {
            return Err(Error::invalid(format!(
                "call {sequence} of group `{name}` came where call {due} was due; wait for what was started on the \
                 traced group before the other one is used, and the other way round"
            )));
        }
        Ok(())
    }
}

/// The error of a thread that uses a group while another one does.
pub(crate) fn used_by_two(name: &str) -> Error {
    Error::invalid(format!("group `{name}` was used by two threads at once; use all groups of a rank from one thread"))
}

/// Runs a part of a call whose number is taken, so that peers wait for this rank: an error or a panic ends the world by
/// `fail`, whatever the caller makes of it.
///
/// # Errors
///
/// Those of `f`.
pub(crate) fn told<T>(f: impl FnOnce() -> Result<T>, fail: impl Fn(&Error)) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.inspect_err(fail),
        Err(payload) => {
            // Only its text is told, as the cause of peers' errors.
            fail(&Error::invalid(format!("it panicked in a collective: {}", message_of(&*payload))));
            resume_unwind(payload)
        }
    }
}
