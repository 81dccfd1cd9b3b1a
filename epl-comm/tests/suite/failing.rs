//! A run that fails though every rank returns what it has seen.

use std::collections::BTreeMap;
use std::sync::Mutex;

use epl_comm::{Error, ProcessGroup, Rank, local};

/// Runs `f` on each of `ranks` ranks; returns what each returned, and the failure of the run.
pub fn run_failing<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> (Vec<T>, (Rank, Error)) {
    let seen = Mutex::new(BTreeMap::new());
    let result = local::run(ranks, |group| {
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
