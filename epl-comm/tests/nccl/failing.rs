//! Runs over NCCL, called as the suite calls its runs of threads. Where it gives a limit of 0, results may be made in the
//! memory of a call's buffer.

use std::collections::BTreeMap;
use std::sync::Mutex;

use epl_comm::{Error, ProcessGroup, Rank, Result};

use crate::fake::Fake;

pub const EAGER_LIMITS: [usize; 2] = [0, 8 << 10];

/// Of more than two, all are compared at once.
pub fn knows_the_odd_one(ranks: usize) -> bool {
    ranks > 2
}

pub fn run_ranks<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    run_ranks_with(ranks, 0, f)
}

pub fn run_ranks_with<T: Send>(ranks: usize, limit: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    Fake::new().run(ranks, limit == 0, f)
}

/// Ranks that make the calls of different groups in one order.
pub fn run_ordered(
    ranks: usize,
    limit: usize,
    f: impl Fn(ProcessGroup) -> Result<()> + Sync,
) -> Result<Vec<()>, (Rank, Error)> {
    let fake = Fake::new();
    let ended = fake.run_on(fake.launcher(ranks).check_order(), limit == 0, f);
    assert_eq!(fake.count("misused"), 0);
    ended
}

pub fn run_failing<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> (Vec<T>, (Rank, Error)) {
    run_failing_limited(ranks, 0, f)
}

pub fn run_failing_limited<T: Send>(
    ranks: usize,
    limit: usize,
    f: impl Fn(ProcessGroup) -> T + Sync,
) -> (Vec<T>, (Rank, Error)) {
    let (fake, seen) = (Fake::new(), Mutex::new(BTreeMap::new()));
    let ended = fake.run_on(fake.launcher(ranks), limit == 0, |group| {
        let (rank, value) = (group.rank(), f(group));
        seen.lock().unwrap().insert(rank, value);
        Ok::<_, Error>(())
    });
    let failure = ended.expect_err("a world that failed is a failed run");
    // No communicator is left, and none was used in a way that NCCL does not allow.
    assert_eq!(fake.count("made"), fake.count("aborted") + fake.count("destroyed"), "{failure:?}");
    assert_eq!(fake.count("misused"), 0, "{failure:?}");
    let seen: Vec<T> = seen.into_inner().unwrap().into_values().collect();
    assert_eq!(seen.len(), ranks, "{failure:?}");
    (seen, failure)
}
