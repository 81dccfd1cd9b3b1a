//! Starting ranks as threads, each with a device.

use core::fmt::Display;
use std::sync::Arc;

use super::gate::Gate;
use super::group_control::{Shared, Threads};
use super::memory::Memory;
use super::setup::Nccl;
use super::transport::NcclTransport;
use crate::error::{Error, Result};
use crate::host::ranks::{Program, values_of};
use crate::local::{self, LocalTransport};
use crate::process_group::ProcessGroup;
use crate::rank::Rank;
use crate::transport::Transport;

/// Starts ranks as threads with a device each, and NCCL between them.
///
/// The time limit is also that of a call in NCCL once all have come.
pub type Launcher = crate::launch::Launcher<Nccl<Local>>;

/// Ranks that are threads of this process, each with a device.
#[derive(Clone, Debug)]
pub struct Local {
    ranks: usize,
    check_order: bool,
}

impl Launcher {
    /// So many ranks, with what [`local::Launcher::new`] says of them.
    pub fn new(ranks: usize) -> Self {
        Self::of(Nccl::new(Local { ranks, check_order: false }, ranks))
    }

    /// See [`local::Launcher::check_order`].
    pub fn check_order(mut self) -> Self {
        self.kind.place.check_order = true;
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
        let devices = core::mem::take(&mut self.kind.devices);
        let ready = self.loaded().and_then(|library| {
            super::presence::check_devices(self.kind.place.ranks, &devices, &library)?;
            super::allocator::settle(self.kind.place.ranks)?;
            super::allocator::share(&devices, self.kind.place.ranks)?;
            Ok(library)
        });
        self.kind.library = Some(ready.map_err(|error| (Rank(0), error.into()))?);
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
        values_of(f, |program| self.run_program(&memory, program))
    }

    fn run_program<M: Memory, E>(
        self,
        memory: &(impl Fn(Rank) -> Result<M> + Sync),
        program: &Program<'_, E>,
    ) -> Result<(), (Rank, E)>
    where
        E: From<Error> + Display + Send,
    {
        let library = self.loaded().map_err(|error| (Rank(0), error.into()))?;
        let Local { ranks, check_order } = self.kind.place;
        let shared = Arc::new(Shared::new(ranks));
        let gates: Vec<Arc<Gate>> = (0..ranks).map(|_| Arc::default()).collect();
        let over = |local_member: Arc<LocalTransport>| -> Result<Arc<dyn Transport>> {
            let member = local_member.member();
            let engine = self.engine(&library, memory(Rank(member))?, &gates[member]);
            let transport = NcclTransport::new(Arc::new(Threads::new(local_member, shared.clone())), engine);
            transport.connect()?;
            Ok(Arc::new(transport))
        };
        let threads = local::Launcher { options: self.options.clone(), ..local::Launcher::new(ranks) };
        let threads = if check_order { threads.check_order() } else { threads };
        threads.run_over(&over, &|group| {
            let _until = gates[group.rank()].until_left();
            program(group)
        })
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
