//! A rank that is a process of its own, or a thread that is to know no more of the others than one.

use core::fmt::Display;
use core::time::Duration;
use std::sync::Arc;
use std::thread::{self, Thread};

use burn::tensor::{DType, Shape};

use super::joined::Joined;
use super::library::Library;
use super::memory::Memory;
use super::run::{LANES, TIME_LIMIT};
use super::transport::{Engine, NcclTransport};
use super::workers::Workers;
use crate::error::{Error, Result, catch};
use crate::operation::{Call, Operation};
use crate::pending::Helpers;
use crate::process_group::{ProcessGroup, Seat};
use crate::rank::Rank;
use crate::store::Store;

/// One rank of a world of processes, on one host or several, that share a [`Store`].
#[derive(Clone)]
pub struct Worker {
    store: Arc<dyn Store>,
    rank: usize,
    ranks: usize,
    library: Option<Arc<Library>>,
    time_limit: Option<Duration>,
    lanes: usize,
    compare_every: u64,
    #[cfg(feature = "cuda")]
    device: usize,
}

impl Worker {
    /// Rank `rank` of `ranks`, with a time limit of half an hour and every call compared. A store serves one run: what
    /// is run again needs a new one.
    pub fn new(store: Arc<dyn Store>, rank: usize, ranks: usize) -> Self {
        Self {
            store,
            rank,
            ranks,
            library: None,
            time_limit: Some(TIME_LIMIT),
            lanes: LANES,
            compare_every: 1,
            #[cfg(feature = "cuda")]
            device: 0,
        }
    }

    /// How long a call may take, the time in which others come to it included. Then the run fails with an
    /// [`Error::Timeout`] that names the ranks that have not come, with their last calls, or an [`Error::Engine`] when
    /// all have.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// A call may take as long as it takes.
    pub fn no_time_limit(mut self) -> Self {
        self.time_limit = None;
        self
    }

    /// Compares every how manieth call of a group with those of the other members before any memory is touched; 1, all,
    /// if nothing is said, and none for 0. It takes an exchange of a few bytes over NCCL for each call that is compared.
    /// What is not compared and does not fit together hangs until the time limit, or gives wrong numbers.
    pub fn compare_every(mut self, calls: u64) -> Self {
        self.compare_every = calls;
        self
    }

    /// See [`Launcher::lanes`](super::Launcher::lanes).
    pub fn lanes(mut self, calls: usize) -> Self {
        self.lanes = calls.max(1);
        self
    }

    /// NCCL itself, where it is not to be looked for.
    pub fn library(mut self, library: Arc<Library>) -> Self {
        self.library = Some(library);
        self
    }

    /// The index of the rank's CUDA device among those that its process sees; 0 if nothing is said.
    #[cfg(feature = "cuda")]
    pub fn device(mut self, index: usize) -> Self {
        self.device = index;
        self
    }

    /// Runs `f` as this rank, on its CUDA device.
    ///
    /// # Errors
    ///
    /// As [`run_on`](Self::run_on), and [`Error::Engine`] when there is no driver, or no such device.
    #[cfg(feature = "cuda")]
    pub fn run<T, E>(self, f: impl FnOnce(ProcessGroup) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + Display,
    {
        let memory = super::device::CudaMemory::new(self.device)?;
        self.run_on(memory, f)
    }

    /// Runs `f` as this rank, on the calling thread, with this memory. A rank that fails releases the others, and so does
    /// one that returns while others wait for it.
    ///
    /// # Errors
    ///
    /// What `f` returns or unwinds with; the failure of the world, also when `f` made up for it; and
    /// [`Error::Engine`] when NCCL cannot be loaded.
    pub fn run_on<M: Memory, T, E>(self, memory: M, f: impl FnOnce(ProcessGroup) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error> + Display,
    {
        if self.rank >= self.ranks {
            let message = format!("rank {} of {} ranks; ranks count from 0", self.rank, self.ranks);
            return Err(Error::invalid(message).into());
        }
        let library = self.library.clone().map_or_else(Library::open, Ok)?;
        let helpers = Helpers::default();
        let seat = Seat::new(helpers.clone());
        let joined = Arc::new(Joined::new(self.store.clone(), Rank(self.rank), seat.log.clone()));
        let engine = Engine { library, memory: Arc::new(memory), time_limit: self.time_limit, lanes: self.lanes };
        thread::scope(|scope| {
            let watch = scope.spawn(|| joined.watch());
            // Dropped when the rank has ended, also when the caller's own code panics.
            let departure = Departure { joined: &joined, helpers: &helpers, watch: watch.thread() };
            let result = self.live(&joined, engine, seat, f);
            drop(departure);
            let none = Call::new(Operation::Barrier, DType::F32, Shape::new([0]));
            match (result, joined.failure(&none)) {
                (Ok(_), Some(failure)) => Err(failure.into()),
                (result, _) => result,
            }
        })
    }

    /// The life of the rank.
    fn live<M: Memory, T, E>(
        &self,
        joined: &Arc<Joined>,
        engine: Engine<M>,
        seat: Seat,
        f: impl FnOnce(ProcessGroup) -> Result<T, E>,
    ) -> Result<T, E>
    where
        E: From<Error> + Display,
    {
        let council = Workers::new(joined.clone(), self.ranks, self.compare_every);
        let transport = Arc::new(NcclTransport::new(Arc::new(council), Arc::new(engine)));
        let connected = transport.connect();
        let ended = connected.and_then(|()| catch(|| f(ProcessGroup::with_seat(transport, seat))));
        let result = ended.unwrap_or_else(|error| {
            joined.fail(&error);
            Err(error.into())
        });
        if let Err(error) = &result {
            // The caller's code, which may do anything.
            let text = catch(|| error.to_string());
            joined.fail(&Error::invalid(text.unwrap_or_else(|panic| format!("its error has no text: {panic}"))));
        }
        result
    }
}

/// Tells the others that the rank has ended, and ends its watch.
struct Departure<'a> {
    joined: &'a Joined,
    helpers: &'a Helpers,
    watch: &'a Thread,
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.joined.fail(&Error::Panic { message: "in the code that handles an error".into() });
        }
        self.helpers.join();
        self.joined.end();
        self.joined.close();
        self.watch.unpark();
    }
}
