//! Starting ranks as threads, each with a device.

use core::fmt::Display;
use core::time::Duration;
use std::sync::Arc;

use super::council::{Ids, Threads};
use super::library::Library;
use super::memory::Memory;
use super::transport::{Engine, NcclTransport};
use crate::error::{Error, Result};
use crate::local::{self, LocalTransport};
use crate::process_group::ProcessGroup;
use crate::rank::Rank;
use crate::transport::Transport;

/// How long a call may take in NCCL unless it is said otherwise.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);
/// How many started calls of a rank are in flight together unless it is said otherwise: two hide each other's latency,
/// and more take multiprocessors away from what is computed.
const LANES: usize = 2;

/// Starts ranks as threads with a device each, and NCCL between them.
#[derive(Clone, Debug)]
pub struct Launcher {
    pub(super) ranks: usize,
    pub(super) threads: local::Launcher,
    pub(super) library: Option<Arc<Library>>,
    pub(super) time_limit: Option<Duration>,
    pub(super) lanes: usize,
    #[cfg(feature = "cuda")]
    pub(super) devices: Option<Vec<usize>>,
}

impl Launcher {
    /// So many ranks, with what [`local::Launcher::new`] says of them.
    pub fn new(ranks: usize) -> Self {
        Self {
            ranks,
            threads: local::Launcher::new(ranks),
            library: None,
            time_limit: Some(TIME_LIMIT),
            lanes: LANES,
            #[cfg(feature = "cuda")]
            devices: None,
        }
    }

    /// See [`local::Launcher::time_limit`]; also how long a call may take in NCCL once all have come.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.threads = self.threads.time_limit(limit);
        self.time_limit = Some(limit);
        self
    }

    /// See [`local::Launcher::no_time_limit`].
    pub fn no_time_limit(mut self) -> Self {
        self.threads = self.threads.no_time_limit();
        self.time_limit = None;
        self
    }

    /// See [`local::Launcher::check_order`].
    pub fn check_order(mut self) -> Self {
        self.threads = self.threads.check_order();
        self
    }

    /// See [`local::Launcher::on_failure`].
    pub fn on_failure(mut self, report: impl Fn(Rank, &Error) + Send + Sync + 'static) -> Self {
        self.threads = self.threads.on_failure(report);
        self
    }

    /// How many started calls of a rank, in different communicators of a [`Pool`](crate::Pool), are in flight together:
    /// 2 if nothing is said, at least 1.
    pub fn lanes(mut self, calls: usize) -> Self {
        self.lanes = calls.max(1);
        self
    }

    /// NCCL itself, where it is not to be looked for.
    pub fn library(mut self, library: Arc<Library>) -> Self {
        self.library = Some(library);
        self
    }

    /// Runs `f` once for each rank on a thread of its own, with the memory that `memory` gives it.
    ///
    /// # Errors
    ///
    /// As [`local::Launcher::run`]; and when NCCL cannot be loaded, or a rank has no memory.
    pub fn run_on<M: Memory, T, E>(
        self,
        memory: impl Fn(Rank) -> Result<M> + Sync,
        f: impl Fn(ProcessGroup) -> Result<T, E> + Sync,
    ) -> Result<Vec<T>, (Rank, E)>
    where
        T: Send,
        E: From<Error> + Display + Send,
    {
        let library = match self.library {
            Some(library) => library,
            None => Library::open().map_err(|error| (Rank(0), error.into()))?,
        };
        let ids = Arc::new(Ids::default());
        let over = |seat: Arc<LocalTransport>| -> Result<Arc<dyn Transport>> {
            let memory = Arc::new(memory(Rank(seat.member()))?);
            let (time_limit, lanes) = (self.time_limit, self.lanes);
            let engine = Engine { library: library.clone(), memory, time_limit, lanes };
            let transport = NcclTransport::new(Arc::new(Threads::new(seat, ids.clone())), Arc::new(engine));
            transport.connect()?;
            Ok(Arc::new(transport))
        };
        self.threads.run_over(&over, f)
    }
}
