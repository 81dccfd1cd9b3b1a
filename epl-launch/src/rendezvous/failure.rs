//! Who failed a run, and how.

use core::fmt;
use core::time::Duration;

use crate::error::Error;

/// The failure that ended a run: the first one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The worker that failed.
    pub worker: usize,
    /// How it did.
    pub fault: Fault,
}

/// What can become of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It said that it failed, and why; or who watches it did.
    Failed(String),
    /// Its connection ended without a word.
    Lost,
    /// Nothing was heard from it for as long.
    Silent(Duration),
    /// It has not come within this time, nor have others, which are told as text.
    Absent(Duration, String),
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(cause) => write!(formatter, "failed: {cause}"),
            Self::Lost => formatter.write_str(
                "was lost: its connection ended without a word; its process was killed, crashed or left early",
            ),
            Self::Silent(time) => write!(
                formatter,
                "does not answer: nothing was heard from it for {:.1} s; its process is stopped, or its host is gone",
                time.as_secs_f64()
            ),
            Self::Absent(time, others) => write!(
                formatter,
                "did not come within {:.1} s ({others}); start it, see whether its host reaches this one, or wait longer",
                time.as_secs_f64()
            ),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "worker {} {}", self.worker, self.fault)
    }
}

impl From<&Failure> for Error {
    fn from(failure: &Failure) -> Self {
        Self::Worker { worker: failure.worker, cause: failure.fault.to_string() }
    }
}
