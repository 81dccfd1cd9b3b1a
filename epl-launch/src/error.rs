//! What can go wrong between workers.

use core::time::Duration;

/// Workers could not be brought together, or one of them failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Workers could not be brought together, or could not tell each other what they needed to.
    #[error("{message}")]
    Joining {
        /// What, who, and the remedy.
        message: String,
    },
    /// Nobody has given a name its value yet, in a [`Store`](crate::Store). Nothing has failed by that.
    #[error("nobody has set `{key}` within {:.1} s", waited.as_secs_f64())]
    Unset {
        /// The name.
        key: String,
        /// For how long it was waited.
        waited: Duration,
    },
    /// A worker, which is a process, failed, was lost, or does not answer any more. Every other worker gets this error.
    #[error("worker {worker} {cause}")]
    Worker {
        /// The worker that failed first.
        worker: usize,
        /// What became of it, as the end of a sentence that begins with the worker: "failed: ...", "was lost: ...".
        cause: String,
    },
}

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = core::result::Result<T, E>;
