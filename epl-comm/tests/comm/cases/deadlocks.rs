//! Ranks that wait for each other in different groups, and ranks that only seem to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use burn::tensor::{Device, Tensor};
use epl_comm::{Error, Pending, ProcessGroup, Rank, ReduceOp, Result};

use crate::cases::world::World;

fn ones() -> Tensor<1> {
    Tensor::ones([8], &Device::flex())
}

fn start(group: &ProcessGroup) -> Pending<Tensor<1>> {
    group.start_all_reduce(ones(), ReduceOp::Sum).unwrap()
}

/// Runs ranks that end up in a circle of waits; checks that every one of them, and the run, is told of this circle.
fn circle(world: &World, ranks: usize, calls: &[(usize, &str)], f: impl Fn(&ProcessGroup) -> Result<()> + Sync) {
    let expected: Vec<_> = calls.iter().map(|(rank, call)| (Rank(*rank), call.to_string())).collect();
    let life = |world: ProcessGroup| f(&world).unwrap_err();
    world.fail(ranks, life, |errors, (rank, error)| {
        assert_eq!(rank, expected[0].0);
        for error in errors.iter().chain([&error]) {
            assert_eq!(*error, Error::Deadlock { circle: expected.clone() });
        }
    });
}

pub fn in_two_groups_of_the_same_two(world: &World) {
    circle(world, 2, &[(0, "all_reduce(sum), call 2 of group `a`"), (1, "barrier, call 1 of group `b`")], |world| {
        let (a, b) = (world.split("a", 0, 0)?, world.split("b", 0, 0)?);
        a.barrier()?;
        if world.rank() == 1 {
            b.barrier()?;
        }
        a.all_reduce(ones(), ReduceOp::Sum)?;
        b.barrier()
    });
}

pub fn at_wait_of_started_calls_behind_others(world: &World) {
    circle(
        world,
        2,
        &[(0, "all_reduce(sum), call 2 of group `a`"), (1, "barrier, call 2 of group `world`")],
        |world| {
            let a = world.split("a", 0, 0)?;
            let first = start(&a);
            if world.rank() == 1 {
                world.barrier()?;
            }
            let second = start(&a);
            second.wait()?;
            first.wait()?;
            world.barrier()
        },
    );
}

pub fn in_blocking_calls_and_splits_behind_started_ones(world: &World) {
    circle(world, 2, &[(0, "barrier, call 2 of group `a`"), (1, "barrier, call 2 of group `world`")], |world| {
        let a = world.split("a", 0, 0)?;
        if world.rank() == 1 {
            world.barrier()?;
        }
        drop(start(&a));
        a.barrier()?;
        world.barrier()
    });
    circle(world, 2, &[(0, "split, call 2 of group `a`"), (1, "barrier, call 2 of group `world`")], |world| {
        let a = world.split("a", 0, 0)?;
        if world.rank() == 1 {
            world.barrier()?;
        }
        drop(start(&a));
        a.split("c", 0, 0)?;
        world.barrier()
    });
}

/// Links of one group count by themselves: rank 1 has received more from rank 0 than it has sent to rank 2.
pub fn in_links_of_one_group(world: &World) {
    let calls = [(0, "receive, call 1 of group `world, 2 to 0`"), (2, "receive, call 2 of group `world, 1 to 2`")];
    circle(world, 3, &[calls[0], calls[1], (1, "receive, call 3 of group `world, 0 to 1`")], |world| {
        let send = |to: usize| world.send(ones(), to);
        let receive = |from: usize| world.receive(ones(), from).map(drop);
        match world.rank() {
            0 => [send(1), send(1), receive(2)].into_iter().collect(),
            1 => [send(2), receive(0), receive(0), receive(0)].into_iter().collect(),
            _ => [receive(1), receive(1)].into_iter().collect(),
        }
    });
}

pub fn of_three_with_a_fourth_that_waits_for_one_of_them(world: &World) {
    let calls = [(0, "barrier, call 1 of group `01`"), (1, "barrier, call 1 of group `12`")];
    let calls = [calls[0], calls[1], (2, "barrier, call 1 of group `02`")];
    circle(world, 4, &calls, |world| {
        let me = world.rank();
        // Pairs that overlap; who is not in a pair makes up a group that is not used.
        let pair = |name: &str, members: [usize; 2]| world.split(name, usize::from(members.contains(&me)), 0);
        let (a, b, c, d) = (pair("01", [0, 1])?, pair("12", [1, 2])?, pair("02", [0, 2])?, pair("03", [0, 3])?);
        let order = [vec![&a, &c, &d], vec![&b, &a], vec![&c, &b], vec![&d]];
        order[me].iter().try_for_each(|group| group.barrier())
    });
}

/// Rank 2 will come, but that helps neither of the others.
pub fn a_member_that_still_computes_hides_nothing(world: &World) {
    let is_told = AtomicBool::new(false);
    circle(
        world,
        3,
        &[(0, "barrier, call 2 of group `world`"), (1, "barrier, call 1 of group `pair`")],
        move |world| {
            let pair = world.split("pair", world.rank() / 2, 0)?;
            match world.rank() {
                1 => pair.barrier().inspect_err(|_| is_told.store(true, Ordering::Release))?,
                0 => {}
                _ => {
                    while !is_told.load(Ordering::Acquire) {
                        thread::yield_now();
                    }
                }
            }
            world.barrier()
        },
    );
}

/// Long enough for the others to fall asleep; nothing depends on it.
fn compute() {
    thread::sleep(Duration::from_millis(5));
}

pub fn a_chain_of_waits_is_no_circle(world: &World) {
    world.run(3, |world| {
        let me = world.rank();
        let a = world.split("a", me / 2, 0).unwrap();
        let b = world.split("b", usize::from(me > 0), 0).unwrap();
        for _ in 0..20 {
            // Rank 0 waits for rank 1, which waits for rank 2, which computes.
            if me == 2 {
                compute();
            }
            let order = [vec![&a], vec![&b, &a], vec![&b]];
            order[me].iter().for_each(|group| group.barrier().unwrap());
            // The other way round.
            if me == 0 {
                compute();
            }
            order[me].iter().rev().for_each(|group| group.barrier().unwrap());
        }
    });
}

pub fn started_calls_in_opposite_orders_are_no_circle(world: &World) {
    world.run(2, |world| {
        let (a, b) = (world.split("a", 0, 0).unwrap(), world.split("b", 0, 0).unwrap());
        let (mine, other) = if world.rank() == 0 { (&a, &b) } else { (&b, &a) };
        for round in 0..20 {
            let first = start(mine);
            if round % 3 == world.rank() {
                compute();
            }
            let second = start(other);
            // The first needs the peer's second, which is under way, whatever the peer waits for.
            first.wait().unwrap();
            second.wait().unwrap();
        }
    });
}

/// Rank 0's helper thread waits for rank 1 in one group while rank 0 itself is waited for in the other.
pub fn a_helper_that_waits_does_not_make_its_rank_wait(world: &World) {
    world.run(2, |world| {
        let (a, b) = (world.split("a", 0, 0).unwrap(), world.split("b", 0, 0).unwrap());
        for _ in 0..20 {
            if world.rank() == 0 {
                let started = start(&a);
                compute();
                b.barrier().unwrap();
                started.wait().unwrap();
            } else {
                b.barrier().unwrap();
                compute();
                start(&a).wait().unwrap();
            }
        }
    });
}

/// A wait for a rank that has returned is not a circle, but ends all the same.
pub fn a_rank_that_has_returned_is_named_by_a_chain_that_ends_in_it(world: &World) {
    let calls = |world: &ProcessGroup| {
        let me = world.rank();
        let (a, b) = (world.split("a", me / 2, 0)?, world.split("b", usize::from(me > 0), 0)?);
        match me {
            // Who comes after rank 1 was told of it is told where it starts its call.
            0 => a.start_all_reduce(ones(), ReduceOp::Sum)?.wait().map(drop),
            1 => b.barrier(),
            _ => Ok(()),
        }
    };
    let life = |world: ProcessGroup| {
        let error = calls(&world);
        if world.rank() == 2 {
            return error.unwrap();
        }
        let Err(Error::Peer { rank: Rank(2), cause, .. }) = error else { panic!("{error:?}") };
        assert_eq!(cause, "it returned without taking part in barrier, call 1 of group `b`");
    };
    world.fail(3, life, |_, (rank, _)| assert_eq!(rank, Rank(2)));
}
