//! What is said of the ranks of a run before they are started, whatever carries their data.

use core::time::Duration;
use std::sync::Arc;

use crate::error::Error;
use crate::host::watchdog::Options;
use crate::rank::Rank;

/// Starts ranks, of which `K` says where they are and what carries their data, and watches them:
/// [`local::Launcher`](crate::local::Launcher), `mpi::Launcher`, [`nccl::Launcher`](crate::nccl::Launcher) and
/// [`nccl::Worker`](crate::nccl::Worker).
#[derive(Clone, Debug)]
pub struct Launcher<K> {
    pub(crate) kind: K,
    pub(crate) options: Options,
}

impl<K> Launcher<K> {
    /// A time limit of half an hour, and nothing else that is said of all kinds.
    pub(crate) fn of(kind: K) -> Self {
        Self { kind, options: Options::default() }
    }

    /// How long a rank waits in a call for others; half an hour if nothing is said. Then the run fails with an
    /// [`Error::Timeout`], which names the ranks that all the others wait for, with what each did last.
    ///
    /// A thread cannot be stopped from outside. So the other ranks end, but `run` returns only when the rank that did not come
    /// has returned, too; until then, [`on_failure`](Self::on_failure) is the way to hear of it.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.options.time_limit = Some(limit);
        self
    }

    /// A rank waits as long as it takes.
    pub fn no_time_limit(mut self) -> Self {
        self.options.time_limit = None;
        self
    }

    /// How many started calls of a rank, in different communicators of a [`Pool`](crate::Pool), are in flight together. If
    /// nothing is said: over NCCL 2, elsewhere cores ÷ ranks of a host, at least 1.
    pub fn lanes(mut self, calls: usize) -> Self {
        self.options.lanes = Some(calls);
        self
    }

    /// Calls `report` with the first failure and its rank at once, in every process, on the thread that finds it or
    /// hears of it: before the ranks have ended, which they may never do. It may end the process.
    pub fn on_failure(mut self, report: impl Fn(Rank, &Error) + Send + Sync + 'static) -> Self {
        self.options.on_failure = Some(Arc::new(report));
        self
    }
}
