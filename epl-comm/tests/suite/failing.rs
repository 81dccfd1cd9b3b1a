//! Runs in which every rank returns what it has seen: that fail, and with small or large buffers.

use std::collections::BTreeMap;
use std::sync::Mutex;

#[allow(unused_imports, reason = "not every binary that has this file needs it")]
pub use epl_comm::testing::run_ranks;
use epl_comm::{Error, ProcessGroup, Rank, local};

/// Runs `f` on each of `ranks` ranks; returns what each returned, and the failure of the run.
pub fn run_failing<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> (Vec<T>, (Rank, Error)) {
    run_failing_with(local::Launcher::new(ranks), ranks, f)
}

/// The same with an eager limit.
pub fn run_failing_limited<T: Send>(
    ranks: usize,
    limit: usize,
    f: impl Fn(ProcessGroup) -> T + Sync,
) -> (Vec<T>, (Rank, Error)) {
    run_failing_with(local::Launcher::new(ranks).eager_limit(limit), ranks, f)
}

/// The same, launched in some way.
pub fn run_failing_with<T: Send>(
    launcher: local::Launcher,
    ranks: usize,
    f: impl Fn(ProcessGroup) -> T + Sync,
) -> (Vec<T>, (Rank, Error)) {
    let seen = Mutex::new(BTreeMap::new());
    let result = launcher.run(|group| {
        let rank = group.rank();
        let value = f(group);
        seen.lock().unwrap().insert(rank, value);
        Ok::<_, Error>(())
    });
    let seen: Vec<T> = seen.into_inner().unwrap().into_values().collect();
    let failure = result.expect_err("a world that failed is a failed run");
    assert_eq!(seen.len(), ranks, "{failure:?}");
    (seen, failure)
}

/// Whether a mismatch tells who is alone with its call: of more than two, all are compared at once.
pub fn knows_the_odd_one(ranks: usize) -> bool {
    ranks > 2
}

/// Everything is large; as it is unless it is said otherwise; everything is small.
pub const EAGER_LIMITS: [usize; 3] = [0, 8 << 10, usize::MAX];

/// [`run_ranks`] with an eager limit.
pub fn run_ranks_with<T: Send>(ranks: usize, limit: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    let ended = local::Launcher::new(ranks).eager_limit(limit).run(|group| Ok::<T, Error>(f(group)));
    ended.unwrap_or_else(|(rank, error)| panic!("{rank}: {error}"))
}
