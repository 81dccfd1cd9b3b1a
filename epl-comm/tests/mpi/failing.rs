//! Runs over MPI, called as the suite calls its runs of threads.
//!
//! The processes are those of the world. A run of fewer ranks is that of a sub-group; the others look on. A run of more
//! ranks than there are, and what a process that looks on returns, is computed by threads: every test gives all that
//! it asks for, and those of as many ranks as there are go over MPI.

use std::collections::BTreeMap;
use std::sync::Mutex;

use epl_comm::{Error, ProcessGroup, Rank, local, mpi};

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

/// Threads in place of a process that looks on.
fn threads(ranks: usize) -> local::Launcher {
    match per_host() {
        Some(processes) => local::Launcher::new(ranks).hosts_of(ranks_each()).hosts_of(processes * ranks_each()),
        None => local::Launcher::new(ranks),
    }
}

/// Whether this process takes part in a run of so many ranks over MPI.
fn goes_over_mpi(ranks: usize) -> bool {
    mpi::is_launched() && ranks <= mpi::place().unwrap().processes * ranks_each()
}

/// Whether a mismatch tells who is alone with its call. Where a call is made of stages, two are compared at a time.
pub fn knows_the_odd_one(ranks: usize) -> bool {
    let is_in_stages = goes_over_mpi(ranks) && (ranks_each() > 1 || per_host().is_some());
    ranks > 2 && !is_in_stages
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

pub fn run_ranks<T: Clone + Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    if goes_over_mpi(ranks) {
        let results = run_over_mpi(ranks, &f).unwrap_or_else(|(rank, error)| panic!("{rank}: {error}"));
        // All ranks give the same in the tests that look.
        if let Some(result) = results.into_iter().flatten().next() {
            return vec![result; ranks];
        }
    }
    epl_comm::testing::run_ranks(ranks, f)
}

pub fn run_ranks_with<T: Clone + Send>(ranks: usize, _limit: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    run_ranks(ranks, f)
}

pub fn run_failing<T: Clone + Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> (Vec<T>, (Rank, Error)) {
    const FAILED: &str = "a world that failed is a failed run";
    let seen = Mutex::new(BTreeMap::new());
    let life = |group: ProcessGroup| {
        let (rank, value) = (group.rank(), f(group));
        seen.lock().unwrap().insert(rank, value);
    };
    if goes_over_mpi(ranks) {
        let failure = run_over_mpi(ranks, life).expect_err(FAILED);
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        let first = mpi::place().unwrap().process * ranks_each();
        assert_eq!(seen.len(), ranks.saturating_sub(first).min(ranks_each()), "a rank panicked: {failure:?}");
        // All ranks see the same in the tests that look.
        if let Some(value) = seen.into_values().next() {
            return (vec![value; ranks], failure);
        }
    }
    let ended = threads(ranks).run(|group| {
        life(group);
        Ok::<_, Error>(())
    });
    (seen.into_inner().unwrap().into_values().collect(), ended.expect_err(FAILED))
}

pub fn run_failing_limited<T: Clone + Send>(
    ranks: usize,
    _limit: usize,
    f: impl Fn(ProcessGroup) -> T + Sync,
) -> (Vec<T>, (Rank, Error)) {
    run_failing(ranks, f)
}
