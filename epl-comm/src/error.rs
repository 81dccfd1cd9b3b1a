//! What can go wrong between ranks, and how it travels where there is no `Result`.

use core::any::Any;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub use epl_launch::Error as LaunchError;
use serde::{Deserialize, Serialize};

use crate::rank::Rank;

/// A failed collective, or a failed rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// Two members of a group made different calls where the same was expected. Every member gets this error.
    #[error(
        "call {sequence} of group `{group}`: {first} called {first_call}, but {second} called {second_call}{}; \
         all members of a group must make the same calls in the same order",
        if *second_is_odd { ", against most others" } else { "" }
    )]
    Mismatch {
        /// The group.
        group: String,
        /// The number of the call in the group, from 1.
        sequence: u64,
        /// A member that is at odds with the second: one of the majority, if there is one.
        first: Rank,
        /// What it called.
        first_call: String,
        /// A member that is at odds with the first.
        second: Rank,
        /// What that one called.
        second_call: String,
        /// Whether the second is to blame, as more than half of the members are at one, and it is not among them.
        /// Otherwise, as between two, nobody can say who is wrong.
        second_is_odd: bool,
    },
    /// Ranks wait for each other in different groups. Every rank gets this error.
    #[error(
        "ranks wait for each other in a circle: {}; make the calls of different groups in the same order on all \
         their ranks, or begin them with start_* and wait for them in one order",
        describe_circle(circle)
    )]
    Deadlock {
        /// The ranks of the circle, from the lowest on, each with the call it waits in for the next one; the last waits
        /// for the first.
        circle: Vec<(Rank, String)>,
    },
    /// Some ranks did not come to a call within the time limit. Every rank gets this error.
    #[error(
        "{call} has waited {:.1} s for {}; a rank that does not come computes, hangs or was stopped: see what it did \
         last, and set a longer time limit if it only takes that long",
        waited.as_secs_f64(),
        describe_missing(missing)
    )]
    Timeout {
        /// The call, with its group.
        call: String,
        /// How long the rank that lost patience had waited in it.
        waited: Duration,
        /// The ranks that everybody waits for, with what each did last. Ranks that have not come because they wait
        /// for these are not among them.
        missing: Vec<(Rank, String)>,
    },
    /// Two ranks made the calls in which both take part in different orders. Every rank gets this error.
    #[error(
        "{first} made {first_call} where {second} made {second_call}, as number {count} of the calls in which both take \
         part; all ranks must make the calls of all their groups in one order"
    )]
    Order {
        /// The rank that came first.
        first: Rank,
        /// What it called.
        first_call: String,
        /// The other one.
        second: Rank,
        /// What that one called.
        second_call: String,
        /// How many calls of both had been in one order, and this one.
        count: u64,
    },
    /// Another rank failed, or left, and this one was released from what it was doing.
    #[error("{rank} failed: {cause} (noticed in {operation})")]
    Peer {
        /// The rank that failed first.
        rank: Rank,
        /// What this rank was doing when it learned of it.
        operation: String,
        /// Why the other failed.
        cause: String,
    },
    /// A library that carries the data between ranks, such as NCCL, is missing, is not what is needed, or failed; or the
    /// device that it works on.
    #[error("{message}")]
    Engine {
        /// What, with what it said itself, and the remedy.
        message: String,
    },
    /// Something panicked.
    #[error("panicked: {message}")]
    Panic {
        /// The panic's message.
        message: String,
    },
    /// The caller asked for something that cannot be done; nothing was sent.
    #[error("{message}")]
    Invalid {
        /// What, with the numbers and the remedy.
        message: String,
    },
    /// A buffer could not be moved between a device and the host.
    #[error("could not move a buffer between device and host: {message}")]
    Staging {
        /// The device's own message.
        message: String,
    },
    /// The library that carries the data between processes failed.
    #[error("between processes: {message}")]
    Medium {
        /// Its own message, with the call.
        message: String,
    },
    // The last one: serde leaves it out, and counts only those before it alike in both directions.
    /// Workers could not be brought together, or one of them failed.
    #[error(transparent)]
    #[serde(skip)]
    Launch(#[from] LaunchError),
}

fn describe_missing(missing: &[(Rank, String)]) -> String {
    missing.iter().map(|(rank, last)| format!("{rank}, {last}")).collect::<Vec<_>>().join("; ")
}

fn describe_circle(circle: &[(Rank, String)]) -> String {
    let next = circle.iter().cycle().skip(1);
    let waits = circle.iter().zip(next).map(|((rank, call), (next, _))| format!("{rank} waits for {next} in {call}"));
    waits.collect::<Vec<_>>().join("; ")
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;

impl Error {
    /// An [`Error::Invalid`] with this message.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }
}

/// Carries an error through code that has no `Result` (forward and backward passes). No panic message is printed.
///
/// The counterpart is [`catch`].
pub fn unwind(error: Error) -> ! {
    resume_unwind(Box::new(error))
}

/// Runs `f` at the edge of a step: an [`unwind`] inside it comes back as its error, a panic as [`Error::Panic`].
///
/// ```
/// use epl_comm::{Error, catch, unwind};
///
/// let forward = |rows: usize| if rows == 0 { unwind(Error::invalid("a batch without a row")) } else { rows };
/// assert_eq!(catch(|| forward(3)).ok(), Some(3));
/// assert!(matches!(catch(|| forward(0)), Err(Error::Invalid { .. })));
/// ```
///
/// # Errors
///
/// What unwound.
pub fn catch<T>(f: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(from_payload)
}

/// The error inside what was unwound with.
fn from_payload(payload: Box<dyn Any + Send>) -> Error {
    let payload = match payload.downcast::<Error>() {
        Ok(error) => return *error,
        Err(payload) => payload,
    };
    Error::Panic { message: message_of(&*payload) }
}

/// What is known of what was unwound with.
pub(crate) fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(error) = payload.downcast_ref::<Error>() {
        return error.to_string();
    }
    let message = payload.downcast_ref::<&str>().copied().or(payload.downcast_ref::<String>().map(String::as_str));
    message.unwrap_or("with a value that is not a message").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwound_error_comes_back_as_itself_and_a_panic_with_its_message() {
        assert_eq!(catch(|| 3), Ok(3));
        let error = Error::invalid("no");
        assert_eq!(catch(|| -> () { unwind(error.clone()) }), Err(error));
        let panic = |message: &str| Err::<(), _>(Error::Panic { message: message.into() });
        assert_eq!(catch(|| -> () { panic!("plain") }), panic("plain"));
        assert_eq!(catch(|| -> () { panic!("{}", 1 + 1) }), panic("2"));
    }

    #[test]
    fn a_circle_names_all_its_ranks_and_the_remedy() {
        let (a, b) = ("barrier, call 2 of group `a`".to_string(), "split, call 1 of group `b`".to_string());
        assert_eq!(
            Error::Deadlock { circle: vec![(Rank(0), a), (Rank(3), b)] }.to_string(),
            "ranks wait for each other in a circle: rank 0 waits for rank 3 in barrier, call 2 of group `a`; rank 3 waits \
             for rank 0 in split, call 1 of group `b`; make the calls of different groups in the same order on all their \
             ranks, or begin them with start_* and wait for them in one order"
        );
    }
}
