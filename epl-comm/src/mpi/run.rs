//! Starting the ranks of this process, and ending them together with those of the others.

use core::fmt::Display;
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::Instant;

use rayon::ThreadPoolBuilder;

use super::control::{self, DONE};
use super::hybrid::of_world;
use super::inquiry::Answers;
use super::join::join;
use super::library::{self, Place};
use super::wire::Writer;
use super::world::{Watch, World};
use crate::error::{Error, Result, catch, unwind};
use crate::process_group::ProcessGroup;
use crate::rank::Rank;

/// As much as a program's first thread has: a rank runs whole models, which a thread's default was not made for.
const STACK: usize = 8 << 20;
/// How long a rank waits for its peers unless it is said otherwise: as long as other libraries' ranks wait.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);
/// How long a process whose run has failed waits for the others to end with it. The first that ends has the others
/// ended by `mpirun`, before they have said what they know.
const FAREWELL: Duration = Duration::from_secs(2);
/// Between two looks whether all processes are done.
const PACE: Duration = Duration::from_micros(200);

/// What a process that is started by an MPI launcher finds in its environment.
const SIGNS: [&str; 5] = ["OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_SIZE"];

/// Whether this process was started by `mpirun`, or by Slurm or another launcher that speaks PMI, together with others
/// or alone. MPI is not started.
pub fn is_launched() -> bool {
    SIGNS.iter().any(|sign| std::env::var_os(sign).is_some())
}

/// Where this process stands among those that were started with it. Starts MPI, which all of them must do. A process
/// that was not started by a launcher is alone.
///
/// # Errors
///
/// [`Error::Medium`] when the library fails, does not allow calls from several threads, or has been left.
pub fn place() -> Result<Place> {
    library::start()
}

/// Runs `f` on one rank in each process, as [`Launcher::run`] does, with a launcher's defaults.
///
/// # Errors
///
/// See [`Launcher::run`].
///
/// # Panics
///
/// See [`Launcher::run`].
pub fn run<T, E>(f: impl Fn(ProcessGroup) -> Result<T, E> + Sync) -> Result<Vec<T>, (Rank, E)>
where
    T: Send,
    E: From<Error> + Display + Send,
{
    Launcher::new().run(f)
}

/// Joins the processes that were started together, and watches their ranks. To be used alike in all of them.
#[derive(Clone, Debug)]
pub struct Launcher {
    ranks: usize,
    watch: Watch,
}

impl Default for Launcher {
    fn default() -> Self {
        Self::new()
    }
}

impl Launcher {
    /// One rank in each process, a time limit of half an hour.
    pub fn new() -> Self {
        Self { ranks: 1, watch: Watch { time_limit: Some(TIME_LIMIT), ..Watch::default() } }
    }

    /// So many ranks in each process, each a thread. The ranks of process p are p · `ranks` and those after it.
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    /// How long a rank waits in a call for others, and a process for the others to begin the run. Then the run fails
    /// with an [`Error::Timeout`], which names the ranks that all the others wait for, with what each did last: their
    /// processes are asked.
    ///
    /// A thread cannot be stopped from outside. So the other processes end, and have `mpirun` end the one that hangs.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.watch.time_limit = Some(limit);
        self
    }

    /// A rank waits as long as it takes.
    pub fn no_time_limit(mut self) -> Self {
        self.watch.time_limit = None;
        self
    }

    /// How many started calls of a rank, in different communicators of a [`Pool`](crate::Pool), are in flight together;
    /// cores ÷ ranks of a host, at least 1, if nothing is said. Where processes differ, the least counts for all.
    pub fn lanes(mut self, calls: usize) -> Self {
        self.watch.lanes = Some(calls);
        self
    }

    /// Calls `report` with the first failure and its rank at once, in every process, on the thread that finds it or
    /// hears of it: before the ranks have ended, which they may never do. It may end the process.
    pub fn on_failure(mut self, report: impl Fn(Rank, &Error) + Send + Sync + 'static) -> Self {
        self.watch.on_failure = Some(Arc::new(report));
        self
    }

    /// Runs `f` once for each rank of this process, each on a thread of its own, and returns what each returned. All
    /// processes come here, and leave together.
    ///
    /// Each rank works inside its own rayon pool of (cores ÷ ranks of this host) threads, at least one.
    ///
    /// A rank that returns an error, panics or unwinds releases the others, in all processes, from whatever collective
    /// they wait in; so does one that returns while others wait for it.
    ///
    /// # Errors
    ///
    /// When a rank of any process did not succeed, or a collective failed, even if every rank made up for it: the
    /// failure that came first, with the rank that caused it; what that rank returned, if it is one of this process,
    /// otherwise what one of this process was told. When the other processes do not end the run, too, within two
    /// seconds, MPI is not left in order at the end of this one: `mpirun` then ends the others.
    ///
    /// # Panics
    ///
    /// When the conversion into `E` panics; the ranks have been released by then.
    pub fn run<T, E>(self, f: impl Fn(ProcessGroup) -> Result<T, E> + Sync) -> Result<Vec<T>, (Rank, E)>
    where
        T: Send,
        E: From<Error> + Display + Send,
    {
        let Self { ranks, watch } = self;
        let world = join(ranks, watch).map_err(|error| {
            let process = library::start().map_or(0, |place| place.process);
            (Rank(process * ranks), error.into())
        })?;
        let (answers, stop) = (Arc::new(Answers::default()), AtomicBool::new(false));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / (world.place.locals * ranks)).max(1);
        let launch = Launch { world: &world, answers: &answers, threads };
        let results = thread::scope(|scope| {
            scope.spawn(|| control::watch(&world, &answers, &stop));
            // Also when a conversion of the caller's panics below.
            let _stop = Stop(&stop);
            let ranks: Vec<_> = (0..ranks).map(|thread| launch.spawn(scope, world.rank(thread), &f)).collect();
            let join = |thread: ScopedJoinHandle<'_, Result<T, E>>| thread.join();
            let results: Vec<_> =
                ranks.into_iter().map(|rank| rank.map_or_else(|error| Ok(Err(error.into())), join)).collect();
            (0..world.threads).for_each(|thread| world.helpers(world.rank(thread)).join());
            if leave(&world) {
                library::close();
            }
            results
        });
        let unwrap = |result: thread::Result<_>| result.unwrap_or_else(|payload| std::panic::resume_unwind(payload));
        judge(&world, results.into_iter().map(unwrap).collect())
    }
}

/// Ends the watcher when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Tells the other processes that no rank of this one runs any more, and waits for them: not for long when the run has
/// failed. Whether they all came.
fn leave(world: &World) -> bool {
    let mut bytes = Writer::default();
    bytes.number(DONE);
    world.tell_all(&bytes.0);
    let others = world.place.processes - 1;
    let mut failed: Option<Instant> = None;
    while world.done.load(Ordering::Acquire) < others {
        if world.failure().is_some() && failed.get_or_insert_with(Instant::now).elapsed() > FAREWELL {
            return false;
        }
        thread::sleep(PACE);
    }
    let begun = Instant::now();
    while !world.sweep() && begun.elapsed() < FAREWELL {
        thread::sleep(PACE);
    }
    true
}

/// What the threads of one launch share.
struct Launch<'a> {
    world: &'a Arc<World>,
    answers: &'a Arc<Answers>,
    threads: usize,
}

impl Launch<'_> {
    /// Starts the thread of one rank.
    fn spawn<'scope, T, E>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        rank: Rank,
        f: &'scope (impl Fn(ProcessGroup) -> Result<T, E> + Sync),
    ) -> Result<ScopedJoinHandle<'scope, Result<T, E>>>
    where
        T: Send + 'scope,
        E: From<Error> + Display + Send + 'scope,
    {
        Builder::new().name(rank.to_string()).spawn_scoped(scope, move || self.rank(rank, f)).map_err(|error| {
            let error = Error::invalid(format!(
                "cannot start the thread of {rank}: {error}; run fewer ranks, or allow the process more threads"
            ));
            self.world.fail(rank, error.to_string());
            error
        })
    }

    /// The life of one rank.
    fn rank<T: Send, E: From<Error> + Display + Send>(
        &self,
        rank: Rank,
        f: &(impl Fn(ProcessGroup) -> Result<T, E> + Sync),
    ) -> Result<T, E> {
        let _departure = Departure { world: self.world, rank };
        let body = || {
            let group = || {
                let transport = of_world(self.world, self.answers, rank).unwrap_or_else(|error| unwind(error));
                ProcessGroup::with_seat(transport, self.world.seat(rank).clone())
            };
            catch(|| f(group())).unwrap_or_else(|error| {
                // Before the caller's code is run: whatever it does, the others do not wait for it.
                self.world.fail(rank, error.to_string());
                Err(error.into())
            })
        };
        let pool =
            ThreadPoolBuilder::new().num_threads(self.threads).stack_size(STACK).thread_name(move |_| rank.to_string());
        // Scoped, so that the pool's threads have ended when this returns.
        let result = pool
            .build_scoped(|thread| thread.run(), |pool| pool.install(body))
            .unwrap_or_else(|error| Err(self.no_pool(rank, &error).into()));
        if let Err(error) = &result
            && self.world.failure().is_none()
        {
            // The caller's code, which may do anything; so not inside of `fail`.
            let text = catch(|| error.to_string());
            let cause = text.unwrap_or_else(|panic| format!("its error has no text, as its Display {panic}"));
            self.world.fail(rank, cause);
        }
        result
    }

    fn no_pool(&self, rank: Rank, cause: &rayon::ThreadPoolBuildError) -> Error {
        let message = format!(
            "cannot start the {} threads of {rank}: {cause}; run fewer ranks, or allow the process more threads",
            self.threads
        );
        self.world.fail(rank, message.clone());
        Error::invalid(message)
    }
}

/// Tells the others that a rank has ended, when it is dropped: at its end, or when the caller's own code panics.
struct Departure<'a> {
    world: &'a World,
    rank: Rank,
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            // The rank's own panics are caught: this one is in the code that turns them into the caller's error.
            self.world.fail(self.rank, "it panicked while it handled an error".to_string());
        }
        // The stages of a call over several processes take their numbers when they are run.
        while self.world.threads > 1 && !self.world.helpers(self.rank).are_idle() {
            thread::sleep(PACE);
        }
        self.world.end(self.rank);
    }
}

/// All results, or the one that counts among the failures.
fn judge<T, E: From<Error>>(world: &World, results: Vec<Result<T, E>>) -> Result<Vec<T>, (Rank, E)> {
    let culprit = world.failure().map(|failure| failure.rank);
    let mut values = Vec::with_capacity(results.len());
    let mut failures = Vec::new();
    for (thread, result) in results.into_iter().enumerate() {
        match result {
            Ok(value) => values.push(value),
            Err(error) => failures.push((world.rank(thread), error)),
        }
    }
    if failures.is_empty() {
        return match world.failure() {
            None => Ok(values),
            Some(failure) => Err((failure.rank, failure.of_run("the run, whose ranks here all returned well").into())),
        };
    }
    // The culprit may have returned well, too early, or in another process; then whoever noticed says so.
    let index = failures.iter().position(|(rank, _)| Some(*rank) == culprit).unwrap_or(0);
    let (rank, error) = failures.swap_remove(index);
    Err((culprit.unwrap_or(rank), error))
}
