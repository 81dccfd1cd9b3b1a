//! Collectives that run while their caller goes on.
//!
//! ```text
//! caller   start A ── start B ── compute ─────────── A.wait() ── B.wait()
//!             │          │                              ▲           ▲
//! helper      └▶[ A ........ ]──▶[ B ......... ]────────┘───────────┘
//! ```
//!
//! A group has one helper thread, made when it is first needed; it runs the calls in the order in which they were
//! started. Over NCCL the caller has put all that a call needs on its device's stream before, the helper gives the call to
//! NCCL, and the caller goes on when that is done, not when the call is: what it computes with the result comes behind it
//! on the device. The call owns its buffers until every member has left it, so a dropped [`Pending`] frees nothing that a
//! peer reads.

mod helper;
mod ticket;

pub(crate) use helper::{Helper, Helpers, Pause};
pub(crate) use ticket::Ticket;

use core::fmt;

use crate::buffer::Buffer;
use crate::call_hooks::hooked;
use crate::error::{Error, Result};

/// A started collective.
///
/// Dropping it abandons the result, not the call: peers still get theirs.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use epl_comm::{ReduceOp, testing::run_ranks};
///
/// let sums = run_ranks(2, |group| {
///     let x = Tensor::<1>::full([1], group.rank() as f32, &Device::flex());
///     let sum = group.start_all_reduce(x.clone(), ReduceOp::Sum).unwrap(); // the helper thread has it
///     let own = x.into_scalar::<f32>(); // computed meanwhile
///     sum.map(move |sum| sum.into_scalar::<f32>() - own).wait().unwrap()
/// });
/// assert_eq!(sums, [1.0, 0.0]); // what the other has
/// ```
#[must_use = "a started collective's errors come out at `wait`"]
pub struct Pending<T>(PendingState<T>);

enum PendingState<T> {
    Ready(T),
    Running { ticket: Ticket, finish: Box<dyn FnOnce(Buffer) -> T + Send> },
}

/// Whether started calls can run where so many of a rank may be in flight together.
pub(crate) fn check_lanes(lanes: Option<usize>) -> Result<()> {
    match lanes {
        Some(0) => {
            Err(Error::invalid("0 started calls in flight together, so that none could ever run; allow at least 1"))
        }
        _ => Ok(()),
    }
}

impl<T> Pending<T> {
    pub(crate) fn running(ticket: Ticket, finish: impl FnOnce(Buffer) -> T + Send + 'static) -> Self {
        Self(PendingState::Running { ticket, finish: Box::new(finish) })
    }

    /// The same collective with another result, made of its own by `f` when it is waited for.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + Send + 'static) -> Pending<U>
    where
        T: 'static,
    {
        Pending(match self.0 {
            PendingState::Ready(value) => PendingState::Ready(f(value)),
            PendingState::Running { ticket, finish } => {
                PendingState::Running { ticket, finish: Box::new(move |buffer| f(finish(buffer))) }
            }
        })
    }

    /// Blocks until the collective has ended.
    ///
    /// To be called on the rank's own thread: ranks that wait for each other in a circle are found among those only.
    ///
    /// # Errors
    ///
    /// What the collective failed with; by then the world has been ended. [`Error::Invalid`] on another thread, over NCCL.
    pub fn wait(self) -> Result<T> {
        hooked(|| match self.0 {
            PendingState::Ready(value) => Ok(value),
            PendingState::Running { ticket, finish } => ticket.wait().map(finish),
        })
    }

    /// Whether [`wait`](Self::wait) would return at once. Not to be asked until it is so: over NCCL, calls of ranks that
    /// are not [`warmed_up`](crate::ProcessGroup::warmed_up) go out while the rank waits.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            PendingState::Ready(_) => true,
            PendingState::Running { ticket, .. } => ticket.is_done(),
        }
    }
}

/// One that has ended already.
impl<T> From<T> for Pending<T> {
    fn from(value: T) -> Self {
        Self(PendingState::Ready(value))
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("is_done", &self.is_done()).finish_non_exhaustive()
    }
}
