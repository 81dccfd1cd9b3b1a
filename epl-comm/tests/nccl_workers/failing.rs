//! Runs of several workers over NCCL, called as the suite calls its runs of threads. Where it gives a limit of 0, results
//! may be made in the memory of a call's buffer.

use std::sync::{Arc, Mutex};
use std::thread;

use epl_comm::nccl::Worker;
use epl_comm::{Error, MemoryStore, ProcessGroup, Rank};

use crate::fake::Fake;
use crate::host_memory::HostMemory;

pub const EAGER_LIMITS: [usize; 2] = [0, 8 << 10];

/// Of more than two, all are compared at once.
pub fn knows_the_odd_one(ranks: usize) -> bool {
    ranks > 2
}

pub fn run_ranks<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    run_ranks_with(ranks, 0, f)
}

pub fn run_ranks_with<T: Send>(ranks: usize, limit: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    let fake = Fake::new();
    let (values, failures) = run(&fake, ranks, limit, f);
    assert_eq!(failures, []);
    assert_eq!(fake.count("aborted"), 0);
    values
}

pub fn run_failing<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> (Vec<T>, (Rank, Error)) {
    run_failing_limited(ranks, 0, f)
}

pub fn run_failing_limited<T: Send>(
    ranks: usize,
    limit: usize,
    f: impl Fn(ProcessGroup) -> T + Sync,
) -> (Vec<T>, (Rank, Error)) {
    let (values, failures) = run(&Fake::new(), ranks, limit, f);
    assert_eq!(failures.len(), ranks, "a world that failed is a failed run of each: {failures:?}");
    assert!(failures.iter().all(|(rank, _)| *rank == failures[0].0), "{failures:?}");
    (values, failures[0].clone())
}

/// What each rank has seen, and the failures of the workers.
fn run<T: Send>(
    fake: &Fake,
    ranks: usize,
    limit: usize,
    f: impl Fn(ProcessGroup) -> T + Sync,
) -> (Vec<T>, Vec<(Rank, Error)>) {
    let store = Arc::new(MemoryStore::new());
    let seen: Vec<Mutex<Option<T>>> = (0..ranks).map(|_| Mutex::new(None)).collect();
    let worker = |rank: usize| {
        let worker = Worker::new(store.clone(), rank..rank + 1, ranks).library(fake.library.clone());
        let ended = worker.run_on(
            |rank| Ok(HostMemory::new(fake, rank, limit == 0)),
            |group| {
                let (rank, value) = (group.rank(), f(group));
                *seen[rank].lock().unwrap() = Some(value);
                Ok::<_, Error>(())
            },
        );
        ended.err()
    };
    let failures: Vec<_> = thread::scope(|scope| {
        let worker = &worker;
        let threads: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || worker(rank))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    // No communicator is left, and none was used in a way that NCCL does not allow.
    assert_eq!(fake.count("made"), fake.count("aborted") + fake.count("destroyed"), "{failures:?}");
    assert_eq!(fake.count("misused"), 0, "{failures:?}");
    let values: Vec<T> = seen.into_iter().filter_map(|value| value.into_inner().unwrap()).collect();
    assert_eq!(values.len(), ranks, "{failures:?}");
    (values, failures)
}
