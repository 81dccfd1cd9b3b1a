//! The ranks of one process of several, or threads that are to know no more of each other than processes do.

use core::fmt::Display;
use core::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder, Thread};

use epl_launch::Store;

use super::gate::Gate;
use super::library::Library;
use super::memory::Memory;
use super::setup::Nccl;
use super::store_plane::StorePlane;
use super::transport::NcclTransport;
use super::workers::{Warm, Workers};
use crate::error::{Error, Result};
use crate::host::failure::Failure;
use crate::host::ranks::{Program, Ranks, Report, Supervisor, no_thread, values_of};
use crate::host::watchdog::ControlPlane;
use crate::log::Log;
use crate::pending::Helpers;
use crate::process_group::{ProcessGroup, RankState};
use crate::rank::Rank;

/// So many calls of each group are compared unless it is said otherwise.
const COMPARED: u64 = 32;

/// Starts some ranks of a world of processes, on one host or several, that share a [`Store`], with a device each and NCCL
/// between them.
///
/// The time limit is that of a call, the time in which others come to it included: the run fails with an
/// [`Error::Timeout`] that names the ranks that have not come, or an [`Error::Engine`] when all have.
pub type Worker = crate::launch::Launcher<Nccl<Distributed>>;

/// Ranks of this process among those of others.
#[derive(Clone)]
pub struct Distributed {
    store: Arc<dyn Store>,
    own: Range<usize>,
    ranks: usize,
    on_host: usize,
    compare_first: u64,
}

impl Worker {
    /// The ranks `own` of `ranks`, with a time limit of half an hour, whose calls are compared while they warm up, and the first ones of
    /// each group.
    /// A store serves one run: what is run again needs a new one.
    pub fn new(store: Arc<dyn Store>, own: Range<usize>, ranks: usize) -> Self {
        let on_host = own.len();
        Self::of(Nccl::new(Distributed { store, own, ranks, on_host, compare_first: COMPARED }, on_host))
    }

    /// Compares so many calls of each group, from the first on, with those of the other members before any memory is
    /// touched: 32 if nothing is said; [`u64::MAX`] for all. All calls of a group are compared until it is
    /// [`warmed_up`](crate::ProcessGroup::warmed_up). A started call that is compared holds up the later calls of the rank in
    /// other groups, but for links, until its members have come. Members meet at the store for each call that is compared, the
    /// rank's thread waiting with it where it waits for the call: some round trips to the store's host. What is not
    /// compared and does not fit together hangs until the time limit, or gives wrong numbers.
    pub fn compare_first(mut self, calls: u64) -> Self {
        self.kind.place.compare_first = calls;
        self
    }

    /// How many ranks all the processes of this host run, which share its cores; only these, if nothing is said. Each
    /// works inside its own rayon pool of (cores ÷ ranks of the host) threads, at least one.
    pub fn ranks_on_host(mut self, ranks: usize) -> Self {
        self.kind.place.on_host = ranks;
        self
    }

    /// Runs `f` once for each of these ranks, on its CUDA device.
    ///
    /// # Errors
    ///
    /// As [`run_on`](Self::run_on), and [`Error::Engine`] when there is no driver, or no such device.
    #[cfg(feature = "cuda")]
    pub fn run<T, E>(self, f: impl Fn(ProcessGroup) -> Result<T, E> + Sync) -> Result<Vec<T>, (Rank, E)>
    where
        T: Send,
        E: From<Error> + Display + Send,
    {
        let (Distributed { own, ranks, .. }, devices) = (self.kind.place.clone(), self.kind.devices.clone());
        let first = own.start;
        if devices.len() != own.len() {
            let message = format!("{} devices for {} ranks; give each rank one", devices.len(), own.len());
            return Err((Rank(first), Error::invalid(message).into()));
        }
        let memory = |rank: Rank| {
            super::allocator::settle(ranks)?;
            super::presence::devices()?;
            devices.iter().try_for_each(|index| super::presence::check_index(*index))?;
            super::allocator::share(&devices, ranks)?;
            super::device::CudaMemory::new(devices[rank.0 - first])
        };
        self.run_on(memory, f)
    }

    /// Runs `f` once for each of these ranks, on a thread of its own and with the memory that `memory` gives it. A rank
    /// that fails releases the others, in all processes, and so does one that returns while others wait for it.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use burn::tensor::{Device, Tensor};
    /// # use epl_comm::{Error, Rank, ReduceOp, Result, Store, nccl::{Memory, Worker}};
    /// /// Whether this process and another one, of a rank each, sum up over the devices that `memory` gives.
    /// fn can_sum<M: Memory>(store: Arc<dyn Store>, own: usize, memory: impl Fn(Rank) -> Result<M> + Sync) -> bool {
    ///     let sums = Worker::new(store, own..own + 1, 2).run_on(memory, |group| {
    ///         Ok::<_, Error>(group.all_reduce(Tensor::<1>::ones([1], &Device::default()), ReduceOp::Sum)?.into_scalar::<f32>())
    ///     });
    ///     matches!(sums.as_deref(), Ok([2.0]))
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// When a rank of any process did not succeed, as far as that is known when these have ended, even if every rank here
    /// made up for it: the first failure that one of these knew of, with the rank that caused it; what that rank returned,
    /// if it is one of these, otherwise what one of these was told.
    /// [`Error::Engine`] when NCCL cannot be loaded, or a rank has no memory.
    ///
    /// # Panics
    ///
    /// When the conversion into `E` panics; the ranks have been released by then.
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
        let Distributed { store, own: ranks, ranks: all, on_host, compare_first } = &self.kind.place;
        let library = self.ready().map_err(|error| {
            // The others would wait for these ranks.
            StorePlane::new(store.clone(), Rank(ranks.start), Log::default(), None).fail(&error);
            (Rank(ranks.start), error.into())
        })?;
        let helpers = Helpers::default();
        let rank_states: Vec<RankState> = ranks.clone().map(|_| RankState::new(helpers.clone())).collect();
        let report = self.options.on_failure.clone().map(once);
        let plane = |(rank, rank_state): (usize, &RankState)| {
            Arc::new(StorePlane::new(store.clone(), Rank(rank), rank_state.log.clone(), report.clone()))
        };
        let own = Own { first: ranks.start, plane: ranks.clone().zip(&rank_states).map(plane).collect() };
        let gates: Vec<Arc<Gate>> = ranks.clone().map(|_| Arc::default()).collect();
        let group = |rank: Rank| {
            let engine = self.engine(&library, memory(rank)?, &gates[rank.0 - own.first]);
            let warm = Warm::new(!engine.safeguards.gate);
            let control = Workers::new(own.of(rank).clone(), *all, *compare_first, warm);
            let transport = NcclTransport::new(Arc::new(control), engine);
            transport.connect()?;
            Ok(ProcessGroup::with_state(Arc::new(transport), rank_states[rank.0 - own.first].clone()))
        };
        let program = |group: ProcessGroup| {
            let _until = gates[group.rank() - own.first].until_left();
            program(group)
        };
        let threads = Ranks::new(&own, ranks.clone(), *on_host);
        let ended = thread::scope(|scope| {
            let mut close = Close { own: &own, watches: Vec::new() };
            for plane in &own.plane {
                // Without it, its rank would hear of nothing: none is run.
                let watch = Builder::new().name(format!("{} watch", plane.rank)).spawn_scoped(scope, || plane.watch());
                match watch {
                    Ok(watch) => close.watches.push(watch.thread().clone()),
                    Err(error) => {
                        plane.record(Failure::own(plane.rank, no_thread(plane.rank, "watch", &error)));
                    }
                }
            }
            let ended = threads.run(group, program);
            helpers.join();
            ended
        });
        threads.judge(ended)
    }

    /// NCCL, where these ranks can be run.
    fn ready(&self) -> Result<Arc<Library>> {
        let Distributed { own, ranks, on_host, .. } = &self.kind.place;
        if own.is_empty() || own.end > *ranks {
            let message = format!(
                "ranks {} to {} of {ranks}; a process has at least one, and they count from 0",
                own.start, own.end
            );
            return Err(Error::invalid(message));
        }
        if *on_host < own.len() {
            let message = format!("{on_host} ranks on a host, of which this process runs {}", own.len());
            return Err(Error::invalid(message));
        }
        self.loaded()
    }
}

/// The caller's report, for whichever rank of this process is the first to make it.
fn once(report: Arc<Report>) -> Arc<Report> {
    let is_made = AtomicBool::new(false);
    Arc::new(move |rank, error| {
        if !is_made.swap(true, Ordering::AcqRel) {
            report(rank, error);
        }
    })
}

/// What each rank of this process knows of the world.
struct Own {
    first: usize,
    plane: Vec<Arc<StorePlane>>,
}

impl Own {
    fn of(&self, rank: Rank) -> &Arc<StorePlane> {
        &self.plane[rank.0 - self.first]
    }
}

impl Supervisor for Own {
    fn fail(&self, rank: Rank, cause: String) {
        self.of(rank).record(Failure::own(rank, cause));
    }

    fn end(&self, rank: Rank) {
        self.of(rank).tell_end(rank);
    }

    fn first_failure(&self, operation: &str) -> Option<(Rank, Error)> {
        let failed = self.plane.iter().filter_map(|plane| Some((plane.is_late(), plane.first_failure(operation)?)));
        failed.min_by_key(|(is_late, _)| *is_late).map(|(_, failure)| failure)
    }
}

/// Ends the watches of all ranks, when it is dropped.
struct Close<'a> {
    own: &'a Own,
    watches: Vec<Thread>,
}

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.own.plane.iter().for_each(|plane| plane.close());
        self.watches.iter().for_each(Thread::unpark);
    }
}
