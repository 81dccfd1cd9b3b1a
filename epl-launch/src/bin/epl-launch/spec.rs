//! What an agent and the keepers of its workers tell each other, and what agents tell each other of a failure.
//!
//! An *agent* is the `epl-launch` of a machine, a *keeper* the process above one worker's program.

use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::system::signal_name;

/// The environment variable with the agent's socket. It makes this program a keeper.
pub(crate) const KEEPER: &str = "EPL_LAUNCH_KEEPER";
/// The one with its worker's number, where MPI does not say it.
pub(crate) const WORKER: &str = "EPL_LAUNCH_KEEPER_WORKER";
/// A program that knows of a failure, or says that it fails, may take so long to end by itself.
pub(crate) const AFTER_WORDS: Duration = Duration::from_secs(2);

/// What to start, and how: the first line of the agent's socket. A command line is seen by other users, and the
/// environment has no room for long arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub workers: usize,
    pub local_ranks: usize,
    /// The first worker of this machine.
    pub first: usize,
    pub transport: String,
    pub restart: u32,
    /// What programs know, where they meet.
    pub program_secret: Option<String>,
    pub log_dir: Option<OsString>,
    /// The folder where it tells what its ranks do, if somebody watches.
    pub watched: Option<OsString>,
    pub patience: Duration,
    pub grace: Duration,
    /// The GPUs of all workers of this machine.
    pub devices: Vec<String>,
    /// Whether their numbers are those of the driver, which counts them by their places on the bus.
    pub by_bus: bool,
    pub program: OsString,
    pub arguments: Vec<OsString>,
}

/// What an agent tells a keeper after that, a line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// Start the program, of the launch of this name, and tell it where programs meet, if they do.
    Start { id: String, address: Option<String> },
    /// Hand this signal on.
    Signal(i32),
    /// The attempt has failed: end the program, unless it ends by itself.
    Release,
    /// End at once. Also said by the end of the socket.
    End,
}

/// How a worker ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    /// Its program exited.
    Exited(i32),
    /// Its program was killed.
    Killed(i32),
    /// It could not be started, with the code that a shell would give.
    NotStarted(String, i32),
    /// A process of it was stopped.
    Stopped { process: u32, name: String, milliseconds: u64 },
    /// It was asked to end, and is no cause of anything.
    Released,
}

/// What a keeper tells of the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub ending: Ending,
    /// Whether it had been asked to end before it did.
    pub asked: bool,
}

/// The root cause of a failed attempt: the same for all agents, and what comes of it, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RootCause {
    /// The worker that failed first; none where none did.
    pub worker: Option<usize>,
    /// A sentence, which a worker begins: "failed: ...".
    pub cause: String,
    /// The exit code that stands for it: what a shell shows.
    pub code: i32,
    /// Whether no restart can come to another end, whatever a machine was given.
    pub is_final: bool,
}

/// A key of an attempt, in the agents' session.
pub(crate) fn key(restart: u32, what: &str) -> String {
    format!("{restart}/{what}")
}

impl RootCause {
    /// Of this worker.
    pub fn of_worker(worker: usize, cause: impl Into<String>, code: i32) -> Self {
        Self { worker: Some(worker), ..Self::of_agent(cause, code) }
    }

    /// Of what starts workers.
    pub fn of_agent(cause: impl Into<String>, code: i32) -> Self {
        Self { worker: None, cause: cause.into(), code, is_final: false }
    }
}

impl Ending {
    /// The cause of a failure that it is, with the exit code that stands for it; none where it is none.
    pub fn cause(&self) -> Option<(String, i32)> {
        Some(match self {
            Self::Exited(0) | Self::Released => return None,
            Self::Exited(code) => (format!("it exited with code {code}"), *code),
            Self::Killed(signal) => {
                (format!("it was killed by signal {signal} ({})", signal_name(*signal)), 128 + signal)
            }
            Self::NotStarted(why, code) => (format!("it could not be started: {why}"), *code),
            Self::Stopped { process, name, milliseconds } => {
                let seconds = *milliseconds as f64 / 1e3;
                let how = "(by SIGSTOP, or by a terminal), and does not go on";
                (format!("its process {process} ({name}) has been stopped for {seconds:.1} s {how}"), 1)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_keeps_the_code() {
        assert_eq!(Ending::Exited(3).cause(), Some(("it exited with code 3".into(), 3)));
        assert_eq!(Ending::Killed(9).cause(), Some(("it was killed by signal 9 (SIGKILL)".into(), 137)));
        assert_eq!(Ending::NotStarted("x".into(), 127).cause(), Some(("it could not be started: x".into(), 127)));
        assert_eq!((Ending::Exited(0).cause(), Ending::Released.cause()), (None, None));
    }
}
