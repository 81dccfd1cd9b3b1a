//! What the launcher tells the keeper of a worker, and what the keeper tells of its end.

use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::system::signal_name;

/// The environment variable with the launcher's socket. It makes this program a keeper.
pub(crate) const KEEPER: &str = "EPL_LAUNCH_KEEPER";
/// The one with its worker's number, where MPI does not say it.
pub(crate) const WORKER: &str = "EPL_LAUNCH_KEEPER_WORKER";

/// What to start, and how: the first line of the launcher's socket. A command line is seen by other users, and the
/// environment has no room for long arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub workers: usize,
    pub local_ranks: usize,
    /// The first worker of this machine.
    pub first: usize,
    pub transport: String,
    pub restart: u32,
    /// Where keepers meet, and what they know.
    pub rendezvous: String,
    pub secret: String,
    /// What programs know, where they meet, too.
    pub program_secret: Option<String>,
    pub log_dir: Option<OsString>,
    /// What the user has said that must be the same on all machines.
    pub terms: String,
    pub join_timeout: Duration,
    pub patience: Duration,
    pub grace: Duration,
    /// The GPUs of all workers of this machine.
    pub devices: Vec<String>,
    /// Whether their numbers are those of the driver, which counts them by their places on the bus.
    pub by_bus: bool,
    pub program: OsString,
    pub arguments: Vec<OsString>,
}

/// Which time it is that keepers meet, at this restart: a rendezvous has those who come early for a later time wait.
pub(crate) fn time_of_keepers(restart: u32) -> u32 {
    restart * 2
}

/// That of the vote after it.
pub(crate) fn time_of_vote(restart: u32) -> u32 {
    restart * 2 + 1
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
    /// Its machine was given something else than another one.
    Unlike(String),
    /// A process of it was stopped.
    Stopped { process: u32, name: String, milliseconds: u64 },
    /// It was ended because of another one.
    Released { worker: Option<usize>, cause: String },
}

/// What a keeper tells last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub ending: Ending,
    /// Whether it had been asked to end before it did.
    pub asked: bool,
    /// Its last lines.
    pub tail: Vec<String>,
}

impl Ending {
    /// The exit code that stands for it: what a shell shows.
    pub fn code(&self) -> i32 {
        match self {
            Self::Exited(code) | Self::NotStarted(_, code) => *code,
            Self::Killed(signal) => 128 + signal,
            Self::Unlike(_) => 2,
            Self::Stopped { .. } => 1,
            Self::Released { cause, .. } => parse_cause(cause).0,
        }
    }

    /// What others are told of it; none where it is well.
    pub fn cause(&self) -> Option<String> {
        let text = match self {
            Self::Exited(0) => return None,
            Self::Exited(code) => format!("it exited with code {code}"),
            Self::Killed(signal) => format!("it was killed by signal {signal} ({})", signal_name(*signal)),
            Self::NotStarted(why, _) | Self::Unlike(why) => format!("it could not be started: {why}"),
            Self::Stopped { process, name, milliseconds } => format!(
                "its process {process} ({name}) has been stopped for {:.1} s (by SIGSTOP, or by a terminal), and does not \
                 go on",
                *milliseconds as f64 / 1e3
            ),
            Self::Released { .. } => return None,
        };
        let last = if matches!(self, Self::Unlike(_)) { FINAL } else { "" };
        Some(format!("{text} [code {}{last}]", self.code()))
    }
}

/// Inside what one worker was told of another: machines do not even agree on how often a run is started again.
const FINAL: &str = ", final";

/// Whether a cause says that there is no other start, whatever a machine was told.
pub(crate) fn is_final(cause: &str) -> bool {
    cause.strip_suffix(']').is_some_and(|text| text.ends_with(FINAL))
}

/// The exit code inside what one worker was told of another; 1 where it has none.
pub(crate) fn parse_cause(cause: &str) -> (i32, &str) {
    let parts = cause.strip_suffix(']').and_then(|text| text.rsplit_once(" [code "));
    let number = |code: &str| code.strip_suffix(FINAL).unwrap_or(code).parse().ok();
    parts.and_then(|(text, code)| Some((number(code)?, text))).unwrap_or((1, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_keeps_the_code() {
        let told = |ending: Ending| {
            ending.cause().map(|cause| {
                let (code, text) = parse_cause(&cause);
                (code, text.to_string())
            })
        };
        assert_eq!(told(Ending::Exited(3)), Some((3, "it exited with code 3".into())));
        assert_eq!(told(Ending::Killed(9)), Some((137, "it was killed by signal 9 (SIGKILL)".into())));
        assert_eq!(told(Ending::Exited(0)), None);
        let unlike = Ending::Unlike("x".into());
        assert!(unlike.cause().is_some_and(|cause| is_final(&cause)));
        assert_eq!(told(unlike), Some((2, "it could not be started: x".into())));
        let missing = Ending::NotStarted("x".into(), 127);
        assert!(missing.cause().is_some_and(|cause| !is_final(&cause)));
        assert_eq!(told(missing), Some((127, "it could not be started: x".into())));
        assert_eq!(parse_cause("was lost"), (1, "was lost"));
        assert_eq!(Ending::Released { worker: None, cause: "failed: x [code 7]".into() }.code(), 7);
    }
}
