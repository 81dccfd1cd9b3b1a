//! Which threads there are, and who may use a group.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use epl_comm::{Error, ReduceOp, Result};

use crate::cases::world::World;

pub fn a_group_belongs_to_the_first_thread_that_uses_it(world: &World) {
    world.run(2, |group| {
        group.barrier().unwrap();
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| group.barrier()).join().unwrap());
        assert!(matches!(elsewhere, Err(Error::Invalid { .. })), "{elsewhere:?}");
        let started = std::thread::scope(|scope| {
            let start = || group.start_all_reduce(Tensor::<1>::ones([2], &Device::flex()), ReduceOp::Sum);
            scope.spawn(start).join().unwrap().is_err()
        });
        assert!(started);
        group.barrier().unwrap();
    });
}

pub fn all_groups_of_a_rank_belong_to_the_same_thread(world: &World) {
    world.run(2, |world| {
        let group = world.split("g", 0, 0).unwrap();
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| group.barrier()).join().unwrap());
        let Err(Error::Invalid { message }) = elsewhere else { panic!("{elsewhere:?}") };
        assert!(message.contains("use all groups of a rank from one thread"), "{message}");
        group.barrier().unwrap();
    });
}

pub fn a_rank_may_be_driven_by_a_thread_that_it_starts(world: &World) {
    world.ranks(2).fresh().run(|world| {
        let drive = move || world.split("g", 0, 0).unwrap().barrier().unwrap();
        std::thread::scope(|scope| scope.spawn(drive).join().unwrap());
    });
}

pub fn every_rank_has_a_pool_of_its_own_with_its_share_of_the_cores(world: &World) {
    let cores = std::thread::available_parallelism().unwrap().get();
    for ranks in [1, 2, 3] {
        let pools = world.run(ranks, |group| {
            let name = std::thread::current().name().map(str::to_string);
            assert_eq!(name, Some(format!("rank {}", group.rank())));
            rayon::current_num_threads()
        });
        let expected = (cores / world.kind.on_host(ranks)).max(1);
        assert!(pools.iter().all(|threads| *threads == expected), "{pools:?} instead of {expected}");
    }
}

/// How many threads this process has.
#[cfg(target_os = "linux")]
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// They are counted on Linux only.
#[cfg(not(target_os = "linux"))]
fn threads() -> usize {
    1
}

/// How many there are when the system has forgotten those that have been joined: as many as a moment before.
pub fn settled() -> usize {
    let mut before = threads();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = threads();
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Fails where there are not as many again, however long the system takes to forget those that have been joined.
pub fn assert_none_is_left(before: usize) {
    let begin = Instant::now();
    while threads() != before {
        assert!(begin.elapsed() < Duration::from_secs(10), "{} threads, and {before} before", threads());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Where other tests run at the same time, threads are counted in a process of its own.
pub fn nothing_is_left_when_a_run_is_over(world: &World) {
    world.alone(|| {
        let x = || Tensor::<1>::ones([2], &Device::flex());
        // Burn may start threads of its own at its first use, and a world at its first run.
        world.run(3, |group| group.all_reduce(x(), ReduceOp::Sum).unwrap());
        let before = settled();
        for failing in [false, true, true] {
            let ended = world.ranks(3).launch(|group| -> Result<()> {
                let group = group.split("g", 0, 0)?;
                let pending = group.start_all_reduce(x(), ReduceOp::Sum)?;
                assert!(threads() > before || cfg!(not(target_os = "linux")));
                if failing && group.rank() == 1 {
                    return Err(Error::invalid("no"));
                }
                drop(group.start_all_reduce(x(), ReduceOp::Sum)?);
                // Large enough for Flex to copy it in parallel: in the rank's pool, not in one that stays.
                let large = Tensor::<2>::ones([2048, 1024], &Device::flex()).swap_dims(0, 1);
                drop(group.start_all_reduce(large, ReduceOp::Sum)?);
                pending.wait().map(drop)
            });
            assert!(ended.iter().all(|process| process.ended.is_err() == failing), "{ended:?}");
            assert_none_is_left(before);
        }
    });
}
