//! Starting ranks as threads, each with a device.

use core::fmt::Display;
use core::time::Duration;
use std::sync::Arc;

use super::council::{Shared, Threads};
use super::gate::Gate;
use super::library::Library;
use super::memory::Memory;
use super::transport::{Engine, NcclTransport, Safeguards};
use crate::error::{Error, Result};
use crate::host::ranks::TIME_LIMIT;
use crate::local::{self, LocalTransport};
use crate::pending::check_lanes;
use crate::process_group::ProcessGroup;
use crate::rank::Rank;
use crate::transport::Transport;

/// How many started calls of a rank are in flight together unless it is said otherwise: two hide each other's latency,
/// and more take multiprocessors away from what is computed.
pub(super) const LANES: usize = 2;

/// Starts ranks as threads with a device each, and NCCL between them.
#[derive(Clone, Debug)]
pub struct Launcher {
    threads: local::Launcher,
    library: Option<Arc<Library>>,
    time_limit: Option<Duration>,
    lanes: usize,
    ranks: usize,
    safeguards: Safeguards,
    #[cfg(feature = "cuda")]
    devices: Vec<usize>,
}

impl Launcher {
    /// So many ranks, with what [`local::Launcher::new`] says of them.
    pub fn new(ranks: usize) -> Self {
        Self {
            threads: local::Launcher::new(ranks),
            library: None,
            time_limit: Some(TIME_LIMIT),
            lanes: LANES,
            ranks,
            safeguards: Safeguards::default(),
            #[cfg(feature = "cuda")]
            devices: (0..ranks).collect(),
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
    /// 2 if nothing is said.
    pub fn lanes(mut self, calls: usize) -> Self {
        self.lanes = calls;
        self
    }

    #[doc(hidden)]
    pub fn safeguards(mut self, safeguards: Safeguards) -> Self {
        self.safeguards = safeguards;
        self
    }

    /// NCCL itself, where it is not to be looked for.
    pub fn library(mut self, library: Arc<Library>) -> Self {
        self.library = Some(library);
        self
    }

    /// The CUDA device of each rank, by its index; rank r has device r if nothing is said.
    #[cfg(feature = "cuda")]
    pub fn devices(mut self, indices: &[usize]) -> Self {
        self.devices = indices.to_vec();
        self
    }

    /// Runs `f` once for each rank on a thread of its own, with a CUDA device of its own: `Device::cuda` of the rank's
    /// number, or of the index that [`devices`](Self::devices) gives it. A tensor in host memory goes through the
    /// device, and comes back.
    ///
    /// # Errors
    ///
    /// As [`local::Launcher::run`]; and [`Error::Engine`] before anything is run when NCCL or CUDA's driver cannot be
    /// loaded, when there are too few devices, or several ranks on one where NCCL does not allow it.
    #[cfg(feature = "cuda")]
    pub fn run<T, E>(mut self, f: impl Fn(ProcessGroup) -> Result<T, E> + Sync) -> Result<Vec<T>, (Rank, E)>
    where
        T: Send,
        E: From<Error> + Display + Send,
    {
        let devices = core::mem::take(&mut self.devices);
        let ready = self.loaded().and_then(|library| {
            super::presence::check_devices(self.ranks, &devices, &library)?;
            super::allocator::settle(self.ranks)?;
            super::allocator::share(&devices, self.ranks)?;
            Ok(library)
        });
        self.library = Some(ready.map_err(|error| (Rank(0), error.into()))?);
        self.run_on(|rank| super::device::CudaMemory::new(devices[rank.0]), f)
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
        let library = self.loaded().map_err(|error| (Rank(0), error.into()))?;
        let shared = Arc::new(Shared::new(self.ranks));
        let gates: Vec<Arc<Gate>> = (0..self.ranks).map(|_| Arc::default()).collect();
        let over = |seat: Arc<LocalTransport>| -> Result<Arc<dyn Transport>> {
            let memory = Arc::new(memory(Rank(seat.member()))?);
            let (time_limit, lanes, safeguards) = (self.time_limit, self.lanes, self.safeguards);
            let (gate, order) = (gates[seat.member()].clone(), Arc::default());
            let engine = Engine { library: library.clone(), memory, time_limit, lanes, gate, order, safeguards };
            let transport = NcclTransport::new(Arc::new(Threads::new(seat, shared.clone())), Arc::new(engine));
            transport.connect()?;
            Ok(Arc::new(transport))
        };
        self.threads.run_over(&over, |group| {
            let _until = gates[group.rank()].until_left();
            f(group)
        })
    }

    fn loaded(&self) -> Result<Arc<Library>> {
        check_lanes(Some(self.lanes))?;
        self.library.clone().map_or_else(Library::open, Ok)
    }
}

/// Runs `f` once for each of `ranks` ranks, as [`Launcher::run`] does, with a launcher's defaults.
///
/// # Errors
///
/// See [`Launcher::run`].
#[cfg(feature = "cuda")]
pub fn run<T, E>(ranks: usize, f: impl Fn(ProcessGroup) -> Result<T, E> + Sync) -> Result<Vec<T>, (Rank, E)>
where
    T: Send,
    E: From<Error> + Display + Send,
{
    Launcher::new(ranks).run(f)
}
