//! Starting the ranks of this process, and ending them together with those of the others.

use core::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use super::control;
use super::hybrid::of_world;
use super::join::join;
use super::keeper;
use super::library::{self, Place};
use super::message::Control;
use super::wait_query::{Answers, SILENT};
use super::world::MpiWorld;
use crate::error::{Error, Result};
use crate::host::failure::Failure;
use crate::host::ranks::{Program, Ranks, no_thread, values_of};
use crate::host::watchdog::ControlPlane;
use crate::pending::Helpers;
use crate::process_group::ProcessGroup;
use crate::rank::Rank;

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

/// The host of each process, by the number of the first process there: those that share memory are on one. Starts MPI,
/// which all processes must do.
///
/// # Errors
///
/// As of [`place`].
pub fn hosts() -> Result<Vec<usize>> {
    library::hosts()
}

/// Runs `f` on one rank in each process, as [`Launcher::run`] does, with a launcher's defaults.
///
/// ```no_run
/// use epl_comm::{Error, mpi};
///
/// // In each of the processes that `mpirun` has started: one rank here, whose number is the process's.
/// let ranks = mpi::run(|group| Ok::<_, Error>(group.rank())).map_err(|(_, error)| error)?;
/// assert_eq!(ranks, [mpi::place()?.process]);
/// # Ok::<_, Error>(())
/// ```
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
///
/// The time limit is also that of a process for the others to begin the run. When it is over, the processes of those who have
/// not come are asked what they did last; who has nothing left to do waits for those who have, and after so long only for
/// those whose processes answer. The other processes end, and have `mpirun` end the one that hangs. Where processes differ in
/// how many calls may be in flight together, the least counts for all.
pub type Launcher = crate::launch::Launcher<PerProcess>;

/// So many ranks in each of the processes that an MPI launcher has started.
#[derive(Clone, Debug)]
pub struct PerProcess {
    ranks: usize,
    per_host: Option<usize>,
}

impl Default for Launcher {
    fn default() -> Self {
        Self::new()
    }
}

impl Launcher {
    /// One rank in each process, a time limit of half an hour.
    pub fn new() -> Self {
        Self::of(PerProcess { ranks: 1, per_host: None })
    }

    /// So many ranks in each process, each a thread. The ranks of process p are p · `ranks` and those after it.
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.kind.ranks = ranks;
        self
    }

    /// Takes so many neighbouring processes for those of one host, whichever they are on; otherwise those that share
    /// memory are. Collectives over several hosts go through one process of each. To see how a program does there, to
    /// be said alike in all processes.
    pub fn hosts_of(mut self, processes: usize) -> Self {
        self.kind.per_host = Some(processes);
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
        values_of(f, |program| self.run_program(program))
    }

    fn run_program<E>(self, program: &Program<'_, E>) -> Result<(), (Rank, E)>
    where
        E: From<Error> + Display + Send,
    {
        let Self { kind: PerProcess { ranks, per_host }, options } = self;
        let world = join(ranks, per_host, options).map_err(|error| {
            let process = library::start().map_or(0, |place| place.process);
            (Rank(process * ranks), error.into())
        })?;
        let (answers, stop) = (Arc::new(Answers::default()), AtomicBool::new(false));
        let group = |rank: Rank| {
            let transport = of_world(&world, &answers, rank)?;
            Ok(ProcessGroup::with_state(transport, world.rank_state(rank).clone()))
        };
        let threads = Ranks::new(&*world, world.own(), world.place.locals * ranks);
        let ended = thread::scope(|scope| {
            let watch = || control::watch(&world, &answers, &stop);
            if let Err(error) = Builder::new().name("MPI watch".into()).spawn_scoped(scope, watch) {
                let first = Rank(world.own().start);
                world.fail(first, no_thread(first, "watch", &error));
            }
            let _stop = Stop(&stop);
            let ended = threads.run(group, program);
            world.helpers.iter().for_each(Helpers::join);
            if leave(&world, &answers) {
                keeper::close();
            }
            ended
        });
        threads.judge(ended)
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
/// failed; when it has not, as long as they run, which is looked at when the time limit is over, and then again and again.
/// Whether they all came.
fn leave(world: &MpiWorld, answers: &Answers) -> bool {
    world.tell_all(Control::Done);
    let begun = Instant::now();
    let mut next_look = world.watchdog.options.time_limit;
    let mut failed: Option<Instant> = None;
    loop {
        let running = world.running();
        if running.is_empty() {
            break;
        }
        let waited = begun.elapsed();
        if world.failure().is_some() {
            if failed.get_or_insert_with(Instant::now).elapsed() > FAREWELL {
                return false;
            }
        } else if next_look.is_some_and(|look| waited >= look) {
            look_for(world, answers, running, waited);
            next_look = Some(begun.elapsed().saturating_mul(2));
        }
        thread::sleep(PACE);
    }
    let begun = Instant::now();
    while !world.sweep() && begun.elapsed() < FAREWELL {
        thread::sleep(PACE);
    }
    true
}

/// Ends the run if the processes of some of these ranks, for whose end it waits, do not run.
fn look_for(world: &MpiWorld, answers: &Answers, ranks: Vec<Rank>, waited: Duration) {
    let silent = answers.silent(world, ranks);
    // One that has ended meanwhile had no reason to answer.
    let running = world.running();
    let missing: Vec<_> = silent.into_iter().filter(|rank| running.contains(rank)).collect();
    if let Some(lowest) = missing.first().copied() {
        let missing = missing.into_iter().map(|rank| (rank, SILENT.to_string())).collect();
        let error = Error::Timeout { call: "the end of the run".to_string(), waited, missing };
        world.record(Failure::shared(error, lowest));
    }
}
