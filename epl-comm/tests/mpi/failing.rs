//! Runs over MPI, called as the suite calls its runs of threads.
//!
//! The processes are those of the world. A run of fewer ranks is that of a sub-group, while the others look on. A run of
//! more ranks than there are is skipped, which is noted: all that one world skips another one makes, as `processes` sees to.
//! Nothing is computed that does not go over MPI, and what a run gives is what the ranks of this process gave.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::{Location, resume_unwind};
use std::sync::Mutex;

use epl_comm::{Error, ProcessGroup, Rank, mpi};

use crate::watchdog::Skipped;

/// Of the transport of threads; this one has a limit of its own.
pub const EAGER_LIMITS: [usize; 1] = [8 << 10];

/// How many ranks are in each process.
pub fn ranks_each() -> usize {
    std::env::var(crate::RANKS).map_or(1, |ranks| ranks.parse().unwrap())
}

/// How many processes are taken for one host's; none where all are.
fn per_host() -> Option<usize> {
    std::env::var(crate::PER_HOST).ok().map(|processes| processes.parse().unwrap())
}

/// A launcher of the ranks and hosts of which there are to be so many.
pub fn launcher() -> mpi::Launcher {
    let launcher = mpi::Launcher::new().ranks(ranks_each());
    match per_host() {
        Some(processes) => launcher.hosts_of(processes),
        None => launcher,
    }
}

/// Whether a mismatch tells who is alone with its call. Where a call is made of stages, two are compared at a time.
pub fn knows_the_odd_one(ranks: usize) -> bool {
    let is_in_stages = ranks_each() > 1 || per_host().is_some();
    ranks > 2 && !is_in_stages
}

/// Whether there are ranks enough for a run, which is noted, once for all processes.
fn is_made(ranks: usize, run: &Location<'_>) -> bool {
    if !mpi::is_launched() {
        println!("skipped: {run} with {ranks} ranks, as this process was not started by mpirun");
        return false;
    }
    let place = mpi::place().unwrap();
    let is_made = ranks <= place.processes * ranks_each();
    if let (0, Some(notes)) = (place.process, std::env::var_os(crate::NOTES)) {
        let mut notes = OpenOptions::new().append(true).create(true).open(notes).unwrap();
        writeln!(notes, "{} {run} with {ranks} ranks", if is_made { crate::MADE } else { crate::SKIPPED }).unwrap();
    }
    is_made
}

/// Runs `f` over MPI on the first ranks; what it gave in this process, and how the run ended.
fn run_over_mpi<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Result<Vec<Option<T>>, (Rank, Error)> {
    launcher().run(|world| {
        if world.size() == ranks {
            return Ok(Some(f(world)));
        }
        let takes_part = world.rank() < ranks;
        let group = world.split("world", usize::from(takes_part), 0)?;
        Ok::<_, Error>(takes_part.then(|| f(group)))
    })
}

/// What the ranks of this process gave; nothing where none takes part.
#[track_caller]
pub fn run_ranks<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    if !is_made(ranks, Location::caller()) {
        return Vec::new();
    }
    let results = run_over_mpi(ranks, f).unwrap_or_else(|(rank, error)| panic!("{rank}: {error}"));
    results.into_iter().flatten().collect()
}

#[track_caller]
pub fn run_ranks_with<T: Send>(ranks: usize, _limit: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    run_ranks(ranks, f)
}

/// What the ranks of this process saw, and the failure of the run. Unwinds where none takes part, which ends the test.
#[track_caller]
pub fn run_failing<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> (Vec<T>, (Rank, Error)) {
    if !is_made(ranks, Location::caller()) {
        resume_unwind(Box::new(Skipped));
    }
    let seen = Mutex::new(BTreeMap::new());
    let life = |group: ProcessGroup| {
        let (rank, value) = (group.rank(), f(group));
        seen.lock().unwrap().insert(rank, value);
    };
    let failure = run_over_mpi(ranks, life).expect_err("a world that failed is a failed run");
    let seen = seen.into_inner().unwrap();
    let first = mpi::place().unwrap().process * ranks_each();
    assert_eq!(seen.len(), ranks.saturating_sub(first).min(ranks_each()), "a rank panicked: {failure:?}");
    if seen.is_empty() {
        resume_unwind(Box::new(Skipped));
    }
    (seen.into_values().collect(), failure)
}

#[track_caller]
pub fn run_failing_limited<T: Send>(
    ranks: usize,
    _limit: usize,
    f: impl Fn(ProcessGroup) -> T + Sync,
) -> (Vec<T>, (Rank, Error)) {
    run_failing(ranks, f)
}
