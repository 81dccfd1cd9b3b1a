//! Which threads there are, and who may use a group.

use std::process::Command;

use burn::tensor::{Device, Tensor};
use epl_comm::testing::run_ranks;
use epl_comm::{Error, ReduceOp, local};

#[test]
fn a_group_belongs_to_the_first_thread_that_uses_it() {
    run_ranks(2, |group| {
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

#[test]
fn all_groups_of_a_rank_belong_to_the_same_thread() {
    run_ranks(2, |world| {
        let group = world.split("g", 0, 0).unwrap();
        let elsewhere = std::thread::scope(|scope| scope.spawn(|| group.barrier()).join().unwrap());
        let Err(Error::Invalid { message }) = elsewhere else { panic!("{elsewhere:?}") };
        assert!(message.contains("use all groups of a rank from one thread"), "{message}");
        group.barrier().unwrap();
    });
}

#[test]
fn a_rank_may_be_driven_by_a_thread_that_it_starts() {
    run_ranks(2, |world| {
        let drive = move || world.split("g", 0, 0).unwrap().barrier().unwrap();
        std::thread::scope(|scope| scope.spawn(drive).join().unwrap());
    });
}

#[test]
fn every_rank_has_a_pool_of_its_own_with_its_share_of_the_cores() {
    let cores = std::thread::available_parallelism().unwrap().get();
    for ranks in [1, 2, 3] {
        let pools = run_ranks(ranks, |group| {
            let name = std::thread::current().name().map(str::to_string);
            assert_eq!(name, Some(format!("rank {}", group.rank())));
            rayon::current_num_threads()
        });
        assert_eq!(pools, vec![(cores / ranks).max(1); ranks]);
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

/// How many there are a moment later, when the system has forgotten those that have been joined.
pub fn settled() -> usize {
    std::thread::sleep(std::time::Duration::from_millis(50));
    threads()
}

const CHILD: &str = "threads::nothing_is_left_in_a_process_of_its_own";

/// Other tests run at the same time, so threads are counted in a process of its own.
#[test]
fn nothing_is_left_when_a_run_is_over() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--ignored", "--test-threads=1", "--nocapture"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "run by the test above"]
#[cfg(target_os = "linux")]
fn nothing_is_left_in_a_process_of_its_own() {
    // Burn may start threads of its own at its first use.
    run_ranks(1, |group| group.all_reduce(Tensor::<1>::ones([2], &Device::flex()), ReduceOp::Sum).unwrap());
    let before = settled();
    for failing in [false, true, true] {
        let result = local::run(3, |group| {
            let x = || Tensor::<1>::ones([2], &Device::flex());
            let group = group.split("g", 0, 0)?;
            let pending = group.start_all_reduce(x(), ReduceOp::Sum)?;
            assert!(threads() > before);
            if failing && group.rank() == 1 {
                return Err(Error::invalid("no"));
            }
            drop(group.start_all_reduce(x(), ReduceOp::Sum)?);
            // Large enough for Flex to copy it in parallel: in the rank's pool, not in one that stays.
            let large = Tensor::<2>::ones([2048, 1024], &Device::flex()).swap_dims(0, 1);
            drop(group.start_all_reduce(large, ReduceOp::Sum)?);
            pending.wait().map(drop)
        });
        assert_eq!(result.is_err(), failing);
        assert_eq!(settled(), before);
    }
}

#[test]
#[cfg(not(target_os = "linux"))]
#[ignore = "threads are counted on Linux only"]
fn nothing_is_left_in_a_process_of_its_own() {}
