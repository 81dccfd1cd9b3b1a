//! Collectives that run while their caller goes on.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use epl_comm::ReduceOp;

use crate::cases::world::World;

fn full(value: f64, len: usize) -> Tensor<1> {
    Tensor::full([len], value, &Device::flex())
}

fn first(x: Tensor<1>) -> f64 {
    x.slice_dim(0, 0..1).into_data().iter::<f64>().sum()
}

pub fn they_run_in_the_order_in_which_they_were_started_and_blocking_ones_after_them(world: &World) {
    world.run(3, |group| {
        for round in 0..50 {
            let pending: Vec<_> =
                (0..5).map(|i| group.start_all_reduce(full((round * i) as f64, 100), ReduceOp::Sum).unwrap()).collect();
            let blocking = group.all_reduce(full(-1.0, 10), ReduceOp::Sum).unwrap();
            assert_eq!(first(blocking), -3.0);
            // Waited for in any order.
            for (i, pending) in pending.into_iter().enumerate().rev() {
                assert_eq!(first(pending.wait().unwrap()), (3 * round * i) as f64);
            }
        }
    });
}

pub fn they_do_not_hold_up_their_caller(world: &World) {
    world.run(2, |group| {
        // However late a rank's thread begins.
        group.barrier().unwrap();
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_secs(3));
        }
        let begin = Instant::now();
        let pending = group.start_all_reduce(full(1.0, 10), ReduceOp::Sum).unwrap();
        if group.rank() == 0 {
            assert!(begin.elapsed() < Duration::from_secs(2));
            assert!(!pending.is_done());
        }
        assert_eq!(first(pending.wait().unwrap()), 2.0);
    });
}

pub fn two_groups_make_progress_independently(world: &World) {
    world.run(2, |world| {
        let other = world.split("other", 0, 0).unwrap();
        // Started in opposite orders: on one communicator this would be a mismatch.
        let (a, b) = (full(1.0, 10), full(2.0, 20));
        let (a, b) = if world.rank() == 0 {
            let a = world.start_all_reduce(a, ReduceOp::Sum).unwrap();
            (a, other.start_all_reduce(b, ReduceOp::Sum).unwrap())
        } else {
            let b = other.start_all_reduce(b, ReduceOp::Sum).unwrap();
            (world.start_all_reduce(a, ReduceOp::Sum).unwrap(), b)
        };
        assert_eq!((first(b.wait().unwrap()), first(a.wait().unwrap())), (4.0, 2.0));
    });
}

pub fn a_dropped_pending_frees_nothing_that_a_peer_reads(world: &World) {
    world.run(2, |group| {
        for round in 0..200 {
            let pending = group.start_all_gather(full((round + group.rank()) as f64, 10_000), 0).unwrap();
            if group.rank() == 0 {
                drop(pending);
                // Memory that was freed would be used again.
                let _other = full(-7.0, 10_000);
            } else {
                let all = pending.wait().unwrap();
                let values: Vec<f64> = all.into_data().iter::<f64>().collect();
                assert!(values[..10_000].iter().all(|value| *value == round as f64), "round {round}");
            }
        }
    });
}

pub fn all_handles_may_go_before_the_result_is_taken(world: &World) {
    let sums = world.run(2, |group| {
        let pending = group.start_all_reduce(full(1.0, 1000), ReduceOp::Sum).unwrap();
        drop(group);
        first(pending.wait().unwrap())
    });
    assert!(sums.iter().all(|sum| *sum == 2.0), "{sums:?}");
}

pub fn a_tensor_that_is_still_held_is_not_changed_under_its_holder(world: &World) {
    world.run(2, |group| {
        let mine = full(1.0, 1000);
        let pending = group.start_all_reduce(mine.clone(), ReduceOp::Sum).unwrap();
        assert_eq!(first(mine.clone()), 1.0);
        assert_eq!(first(pending.wait().unwrap()), 2.0);
        assert_eq!(first(mine), 1.0);
    });
}
