//! What ends the ranks of a run together, whatever they hear of each other by: the first failure, the time limit, and who
//! keeps everybody waiting.
//!
//! | control plane | a failure, and the end of a rank | who waits for whom |
//! |---|---|---|
//! | memory (`LocalWorld`) | wake those who wait | is known of all ranks at any time |
//! | messages of MPI (`MpiWorld`) | are sent to all processes | is asked of the ranks' processes, one after the other |
//! | a store (`StorePlane`) | are values at which all look | is not known: all are asked once, when the time is over |

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use super::failure::Failure;
use super::ranks::{Report, Supervisor, TIME_LIMIT};
use crate::error::{Error, catch};
use crate::rank::Rank;

/// How the ranks of a run hear of each other.
pub(crate) trait ControlPlane {
    /// What is known here.
    fn watchdog(&self) -> &Watchdog;

    /// Tells the others of the first failure, which was found here.
    fn tell_failure(&self, _failure: &Failure) {}

    /// Tells all that a rank of this process begins no further call.
    fn tell_end(&self, rank: Rank);

    /// Releases those of this process who wait.
    fn wake(&self, _failure: &Failure) {}

    /// Records a failure that was found here, unless there was one before, and releases everybody. Whether it is the first.
    fn record(&self, failure: Failure) -> bool {
        self.watchdog().first(failure, |failure| {
            self.tell_failure(failure);
            self.wake(failure);
        })
    }

    /// Records that a rank of this process has failed, or one that has ended though it is needed.
    fn fail(&self, rank: Rank, cause: String) {
        self.record(Failure::own(rank, cause));
    }

    /// Records a failure of which another one has told all.
    fn learn(&self, failure: Failure) {
        self.watchdog().first(failure, |failure| self.wake(failure));
    }

    /// The first failure, if there was one.
    fn failure(&self) -> Option<&Failure> {
        self.watchdog().failure.get()
    }
}

impl<P: ControlPlane + Sync> Supervisor for P {
    fn fail(&self, rank: Rank, cause: String) {
        ControlPlane::fail(self, rank, cause);
    }

    fn end(&self, rank: Rank) {
        self.tell_end(rank);
    }

    fn first_failure(&self, operation: &str) -> Option<(Rank, Error)> {
        self.failure().map(|failure| (failure.rank, failure.to_error(operation.to_string())))
    }
}

/// How the ranks of a run are watched.
#[derive(Clone)]
pub(crate) struct Options {
    /// How long a rank waits in a call.
    pub(crate) time_limit: Option<Duration>,
    /// How many calls of a rank may be in flight together; otherwise as the transport has it.
    pub(crate) lanes: Option<usize>,
    /// Told of the first failure: who, and why.
    pub(crate) on_failure: Option<Arc<Report>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { time_limit: Some(TIME_LIMIT), lanes: None, on_failure: None }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time_limit, lanes, on_failure: _ } = self;
        f.debug_struct("Options").field("time_limit", time_limit).field("lanes", lanes).finish_non_exhaustive()
    }
}

/// What the ranks of a process know of the run.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    pub(crate) options: Options,
    failure: OnceLock<Failure>,
}

impl Watchdog {
    pub(crate) fn new(options: Options) -> Self {
        Self { options, failure: OnceLock::new() }
    }

    /// Whether somebody has waited for too long.
    pub(crate) fn is_overdue(&self, waited: Duration) -> bool {
        self.options.time_limit.is_some_and(|limit| waited >= limit)
    }

    /// Keeps a failure, unless there was one before; then `tell`s of it, and reports it. Whether it is the first.
    fn first(&self, failure: Failure, tell: impl FnOnce(&Failure)) -> bool {
        let is_first = self.failure.set(failure).is_ok();
        if let Some(failure) = self.failure.get().filter(|_| is_first) {
            // Before the report, which may end the process.
            tell(failure);
            if let Some(report) = &self.options.on_failure {
                // The caller's code: what it does with a failure must not become another one.
                let _ = catch(|| report(failure.rank, &failure.to_error("the run".to_string())));
            }
        }
        is_first
    }
}

/// The ranks that keep all these waiting. `ask` says for whom one waits in its turn; or something of one that does not wait.
pub(crate) fn sources<S>(mut open: Vec<Rank>, mut ask: impl FnMut(Rank) -> Result<Vec<Rank>, S>) -> BTreeMap<Rank, S> {
    let (mut asked, mut sources) = (BTreeSet::new(), BTreeMap::new());
    while let Some(rank) = open.pop() {
        if !asked.insert(rank) {
            continue;
        }
        match ask(rank) {
            Ok(others) => open.extend(others),
            Err(source) => drop(sources.insert(rank, source)),
        }
    }
    sources
}

/// Ranks that wait for each other, from the lowest on, each for the next one, if the waits from one lead to some.
pub(crate) fn circle<I: Iterator<Item = Rank>>(from: Rank, missing: impl Fn(Rank) -> I) -> Option<Vec<Rank>> {
    let mut seen = BTreeSet::from([from]);
    let mut path = vec![(from, missing(from))];
    while let Some((_, others)) = path.last_mut() {
        let Some(next) = others.next() else {
            path.pop();
            continue;
        };
        if seen.insert(next) {
            path.push((next, missing(next)));
        } else if let Some(begin) = path.iter().position(|(rank, _)| *rank == next) {
            let mut circle: Vec<Rank> = path.drain(begin..).map(|(rank, _)| rank).collect();
            let lowest = circle.iter().enumerate().min_by_key(|(_, rank)| **rank).map_or(0, |(index, _)| index);
            circle.rotate_left(lowest);
            return Some(circle);
        }
    }
    None
}
