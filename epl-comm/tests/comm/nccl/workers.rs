//! Ranks that know no more of each other than processes do: by a store, and over NCCL.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use burn::tensor::{DType, Device, Float, Int, Tensor};
use epl_comm::nccl::Worker;
use epl_comm::{Error, LaunchError, MemoryStore, ProcessGroup, Rank, ReduceOp, Result, Store};

use crate::exercise::{Exercise, exercise};
use crate::fake::Fake;
use crate::host_memory::HostMemory;
use crate::watchdog::within_seconds;

fn sum(group: &ProcessGroup) -> Result<()> {
    group.all_reduce(Tensor::<1>::ones([8], &Device::flex()), ReduceOp::Sum).map(drop)
}

fn run<T: Send>(
    fake: &Fake,
    ranks: usize,
    how: impl Fn(Worker) -> Worker + Sync,
    f: impl Fn(ProcessGroup) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let store = Arc::new(MemoryStore::new());
    let rank = |rank: usize| {
        let worker = Worker::new(store.clone(), rank..rank + 1, ranks).library(fake.library.clone());
        let ended = how(worker).run_on(|rank| Ok(HostMemory::new(fake, rank, true)), &f);
        ended.map(|mut values| values.remove(0)).map_err(|(_, error)| error)
    };
    let results = thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..ranks).map(|number| scope.spawn(move || rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(fake.count("made"), fake.count("aborted") + fake.count("destroyed"));
    assert_eq!(fake.count("misused"), 0);
    results
}

/// A store that can be lost, as a rendezvous is.
struct Losable {
    store: MemoryStore,
    is_lost: AtomicBool,
}

impl Losable {
    fn check(&self) -> Result<(), LaunchError> {
        let lost = || LaunchError::Joining { message: "lost the rendezvous".into() };
        if self.is_lost.load(Ordering::SeqCst) { Err(lost()) } else { Ok(()) }
    }
}

impl Store for Losable {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), LaunchError> {
        self.check().and_then(|()| self.store.set(key, value))
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Vec<u8>, LaunchError> {
        self.check().and_then(|()| self.store.get(key, wait))
    }
}

#[test]
fn ranks_that_lose_the_store_end() {
    within_seconds(60, || {
        // In a call, and while a communicator is made.
        for begins in [true, false] {
            let fake = Fake::new();
            let store = Arc::new(Losable { store: MemoryStore::new(), is_lost: AtomicBool::new(!begins) });
            let worker = Worker::new(store.clone(), 0..1, 2).library(fake.library.clone());
            let ended = thread::scope(|scope| {
                let other = begins.then(|| {
                    let worker = Worker::new(store.clone(), 1..2, 2).library(fake.library.clone());
                    let wait = |_| {
                        thread::sleep(Duration::from_secs(5));
                        Ok::<_, Error>(())
                    };
                    let fake = &fake;
                    scope.spawn(move || worker.run_on(|rank| Ok(HostMemory::new(fake, rank, true)), wait))
                });
                let lose = |group: ProcessGroup| {
                    store.is_lost.store(true, Ordering::SeqCst);
                    sum(&group)
                };
                let ended = worker.run_on(|rank| Ok(HostMemory::new(&fake, rank, true)), lose);
                assert!(
                    other.is_none_or(|other| other.join().unwrap().is_err()),
                    "its rank cannot know how the run ended"
                );
                ended
            });
            let Err((Rank(0), Error::Launch(LaunchError::Joining { message }))) = &ended else { panic!("{ended:?}") };
            assert_eq!(message, "lost the rendezvous");
        }
    });
}

#[test]
fn a_rank_that_returns_with_a_started_call_outstanding_releases_the_others() {
    within_seconds(60, || {
        let fake = Fake::new();
        let ended = run(&fake, 3, patient, |group| {
            let part = group.split("part", usize::from(group.rank() == 2), 0)?;
            if group.rank() == 0 {
                // Rank 1 never comes to it: it waits for this rank elsewhere.
                drop(part.start_all_reduce(Tensor::<1>::ones([8], &Device::flex()), ReduceOp::Sum)?);
                return Ok(());
            }
            sum(&group)
        });
        for rank in [1, 2] {
            let Err(Error::Peer { rank: Rank(0), cause, .. }) = &ended[rank] else { panic!("{ended:?}") };
            assert!(cause.contains("returned without taking part"), "{cause}");
        }
    });
}

fn patient(worker: Worker) -> Worker {
    worker.time_limit(Duration::from_secs(60))
}

#[test]
fn everything_works_as_between_threads() {
    for ranks in 1..=4 {
        let fake = Fake::new();
        let ended = run(&fake, ranks, patient, |group| {
            exercise(&group);
            let part = group.split("part", group.rank() % 2, 9 - group.rank())?;
            for dtype in [DType::F32, DType::I64] {
                let exercise = Exercise { group: &part, dtype, started: true, device: Device::flex() };
                if dtype.is_float() { exercise.all::<Float>() } else { exercise.all::<Int>() }
            }
            Ok(())
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        assert_eq!(fake.count("aborted"), 0);
    }
}

#[test]
fn calls_need_not_be_compared() {
    let fake = Fake::new();
    let ended = run(
        &fake,
        3,
        |worker| patient(worker).compare_first(0),
        |group| {
            group.warmed_up();
            exercise(&group);
            Ok(())
        },
    );
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
}

#[test]
fn members_that_make_different_calls_are_told() {
    within_seconds(60, || {
        let fake = Fake::new();
        let ended = run(&fake, 3, patient, |group| {
            sum(&group)?;
            let len = if group.rank() == 2 { 5 } else { 4 };
            group.all_reduce(Tensor::<1>::ones([len], &Device::flex()), ReduceOp::Sum).map(drop)
        });
        let Err(error @ Error::Mismatch { sequence: 2, second: Rank(2), second_is_odd: true, .. }) = &ended[0] else {
            panic!("{ended:?}")
        };
        assert!(ended.iter().all(|other| other.as_ref() == Err(error)), "{ended:?}");

        // Rows that a peer does not expect: no two members make the same call.
        let fake = Fake::new();
        let ended = run(&fake, 3, patient, |group| {
            let send = if group.rank() == 1 { [1, 1, 2] } else { [1, 1, 1] };
            let x = Tensor::<2>::ones([send.iter().sum(), 5], &Device::flex());
            group.all_to_all_uneven(x, &send, &[1, 1, 1]).map(drop)
        });
        assert!(ended.iter().all(|ended| matches!(ended, Err(Error::Mismatch { .. }))), "{ended:?}");

        let fake = Fake::new();
        let ended = run(&fake, 2, patient, |group| {
            // Longer than other calls; only the second one's end differs.
            let name = "n".repeat(5000);
            group.split(&name, 0, 0)?;
            group.split(&format!("{name}{}", group.rank()), 0, 0).map(drop)
        });
        assert!(ended.iter().all(|ended| matches!(ended, Err(Error::Mismatch { sequence: 2, .. }))), "{ended:?}");

        // A division against another call.
        let fake = Fake::new();
        let ended = run(&fake, 2, patient, |group| match group.rank() {
            0 => group.split("part", 0, 0).map(drop),
            _ => group.all_reduce(Tensor::<1>::ones([4], &Device::flex()), ReduceOp::Sum).map(drop),
        });
        for ended in ended {
            let Err(error @ Error::Mismatch { sequence: 1, .. }) = ended else { panic!("{ended:?}") };
            assert!(error.to_string().contains("rank 0 called split into `part`"), "{error}");
        }
    });
}

#[test]
fn who_hangs_is_named_where_others_wait_in_several_groups() {
    within_seconds(60, || {
        let fake = Fake::new();
        let ended = run(
            &fake,
            3,
            |worker| worker.time_limit(Duration::from_millis(2500)),
            |group| {
                let with = |other| group.split("pair", usize::from(group.rank() == other), 0);
                let (first, second) = (with(1)?, with(0)?);
                sum(&group)?;
                match group.rank() {
                    0 => sum(&first),
                    1 => sum(&second),
                    _ => {
                        thread::sleep(Duration::from_secs(9));
                        sum(&first)
                    }
                }
            },
        );
        for ended in ended {
            let error = ended.unwrap_err();
            assert!(error.to_string().contains("for rank 2, whose last call was"), "{error}");
        }
    });
}

#[test]
fn a_rank_that_fails_or_leaves_releases_the_others() {
    within_seconds(60, || {
        for leaves in [false, true] {
            let fake = Fake::new();
            let ended = run(&fake, 3, patient, |group| {
                sum(&group)?;
                if group.rank() == 1 {
                    return if leaves { Ok(()) } else { Err(Error::invalid("out of luck")) };
                }
                let error = sum(&group).unwrap_err();
                assert!(sum(&group).is_err(), "after a failure every call fails");
                Err::<(), _>(error)
            });
            for rank in [0, 2] {
                let Err(Error::Peer { rank: Rank(1), cause, .. }) = &ended[rank] else { panic!("{ended:?}") };
                let expected = if leaves { "returned without taking part" } else { "out of luck" };
                assert!(cause.contains(expected), "{cause}");
            }
        }
    });
}

/// A store that says who has failed only when a second failure has been told.
#[derive(Default)]
struct Slow {
    store: MemoryStore,
    is_told: AtomicBool,
    is_told_again: AtomicBool,
}

impl Store for Slow {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), LaunchError> {
        if key == "nccl/failure" {
            let is_second = self.is_told.swap(true, Ordering::SeqCst);
            self.is_told_again.fetch_or(is_second, Ordering::SeqCst);
        }
        self.store.set(key, value)
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Vec<u8>, LaunchError> {
        if key == "nccl/failure" && !self.is_told_again.load(Ordering::SeqCst) {
            return Err(LaunchError::Unset { key: key.into(), waited: wait });
        }
        self.store.get(key, wait)
    }
}

#[test]
fn of_two_ranks_of_a_process_the_one_that_failed_first_is_named() {
    within_seconds(60, || {
        let (fake, store) = (Fake::new(), Arc::new(Slow::default()));
        let worker = Worker::new(store.clone(), 0..2, 2).library(fake.library.clone());
        let fail = |group: ProcessGroup| {
            if group.rank() == 1 {
                return Err::<(), _>(Error::invalid("out of luck"));
            }
            while store.store.get("nccl/failure", Duration::ZERO).is_err() {
                thread::yield_now();
            }
            panic!("out of memory")
        };
        let ended = worker.run_on(|rank| Ok(HostMemory::new(&fake, rank, true)), fail);
        assert_eq!(ended, Err((Rank(1), Error::invalid("out of luck"))));
    });
}

#[test]
fn a_rank_that_panics_is_an_error_of_its_own() {
    within_seconds(60, || {
        let fake = Fake::new();
        let ended = run(&fake, 2, patient, |group| if group.rank() == 0 { panic!("no more") } else { sum(&group) });
        assert!(matches!(&ended[0], Err(Error::Panic { message }) if message == "no more"), "{ended:?}");
        assert!(matches!(&ended[1], Err(Error::Peer { rank: Rank(0), .. })), "{ended:?}");
    });
}

#[test]
fn who_does_not_come_in_time_is_named_with_its_last_call() {
    within_seconds(60, || {
        let fake = Fake::new();
        let told = Arc::new(Mutex::new(Vec::new()));
        let how = |worker: Worker| {
            let told = told.clone();
            let report = move |rank, error: &Error| told.lock().unwrap().push((rank, error.to_string()));
            worker.time_limit(Duration::from_millis(2500)).on_failure(report)
        };
        let ended = run(&fake, 3, how, |group| {
            sum(&group)?;
            // Its own process hears of it, too, while this still hangs.
            while group.rank() == 1 && told.lock().unwrap().len() < 3 {
                thread::sleep(Duration::from_millis(50));
            }
            sum(&group)
        });
        let told = told.lock().unwrap();
        assert!(
            told.iter().all(|(rank, error)| *rank == Rank(1) && error.contains("for rank 1, whose last")),
            "{told:?}"
        );
        assert_eq!(told.len(), 3, "each process once");
        for (rank, ended) in ended.iter().enumerate() {
            let error = ended.as_ref().unwrap_err();
            assert!(error.to_string().contains("rank 1"), "rank {rank}: {error}");
            assert!(error.to_string().contains("whose last call was all_reduce(sum)"), "rank {rank}: {error}");
        }
    });
}

#[test]
fn what_nccl_refuses_and_where_it_hangs() {
    within_seconds(60, || {
        let fake = Fake::with("fail", "ncclAllReduce:1");
        let ended = run(&fake, 2, patient, |group| sum(&group));
        assert!(matches!(&ended[1], Err(Error::Engine { .. })), "{ended:?}");
        assert!(matches!(&ended[0], Err(Error::Peer { rank: Rank(1), .. })), "{ended:?}");

        let fake = Fake::with("hang", "ncclAllReduce");
        let ended = run(&fake, 2, |worker| worker.time_limit(Duration::from_secs(2)), |group| sum(&group));
        for ended in ended {
            let error = ended.unwrap_err();
            assert!(error.to_string().contains("has been in NCCL for"), "{error}");
        }
    });
}

#[test]
fn ranks_that_are_none_and_no_lanes_are_refused() {
    let fake = Fake::new();
    for (own, lanes) in [(2..3, 1), (1..1, 1), (0..2, 0)] {
        let worker = Worker::new(Arc::new(MemoryStore::new()), own, 2).library(fake.library.clone()).lanes(lanes);
        let ended = worker.run_on(|rank| Ok(HostMemory::new(&fake, rank, true)), |_| Ok::<_, Error>(()));
        assert!(matches!(ended, Err((_, Error::Invalid { .. }))), "{ended:?}");
    }
    let worker = Worker::new(Arc::new(MemoryStore::new()), 0..2, 2).library(fake.library.clone()).ranks_on_host(1);
    let ended = worker.run_on(|rank| Ok(HostMemory::new(&fake, rank, true)), |_| Ok::<_, Error>(()));
    let Err((Rank(0), Error::Invalid { message })) = ended else { panic!("{ended:?}") };
    assert_eq!(message, "1 ranks on a host, of which this process runs 2");
}
