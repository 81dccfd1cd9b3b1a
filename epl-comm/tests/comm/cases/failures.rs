//! A rank that fails releases the others, and everybody is told who it was.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Device, Shape, Tensor};
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result, unwind};

use crate::cases::world::{Process, World};

/// An application's own error.
#[derive(Debug)]
enum Failure {
    Own(&'static str),
    Comm(Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(message) => f.write_str(message),
            Self::Comm(error) => error.fmt(f),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Comm(error)
    }
}

fn sum(group: &ProcessGroup) -> Result<Tensor<1>> {
    group.all_reduce(Tensor::ones([8], &Device::flex()), ReduceOp::Sum)
}

/// Ways for a rank to stop taking part.
#[derive(Clone, Copy, Debug)]
enum Way {
    Error,
    Panic,
    Unwind,
    Return,
}

const WAYS: [Way; 4] = [Way::Error, Way::Panic, Way::Unwind, Way::Return];

impl Way {
    fn go(self) -> Result<(), Failure> {
        match self {
            Self::Error => Err(Failure::Own("out of luck")),
            Self::Panic => panic!("out of luck"),
            Self::Unwind => unwind(Error::invalid("out of luck")),
            Self::Return => Ok(()),
        }
    }

    fn check(self, culprit: Rank, error: &Failure) {
        match (self, error) {
            (Self::Error, Failure::Own("out of luck")) => {}
            (Self::Panic, Failure::Comm(Error::Panic { message })) => assert_eq!(message, "out of luck"),
            (Self::Unwind, Failure::Comm(Error::Invalid { message })) => assert_eq!(message, "out of luck"),
            (Self::Return, Failure::Comm(Error::Peer { rank, cause, .. })) => {
                assert_eq!(*rank, culprit);
                assert!(cause.contains("returned without taking part"), "{cause}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Checks how a run ended because of `culprit`: its own process has what it returned, the others are told.
fn check_failed(world: &World, ended: Vec<Process<(), Failure>>, culprit: usize, way: Way) {
    for (own, rank, error) in world.failures(ended) {
        assert_eq!(rank, Rank(culprit), "{error}");
        if own.contains(&culprit) {
            way.check(rank, &error);
            continue;
        }
        let Failure::Comm(Error::Peer { rank, cause, .. }) = &error else { panic!("{error:?}") };
        let expected = if matches!(way, Way::Return) { "returned without taking part" } else { "out of luck" };
        assert!(*rank == Rank(culprit) && cause.contains(expected), "{error}");
    }
}

/// Runs `ranks` ranks that make `f`'s call over and over, until `culprit` goes its way before its call `at`.
fn fails(
    world: &World,
    (ranks, culprit, at): (usize, usize, usize),
    way: Way,
    f: impl Fn(&ProcessGroup) -> Result<()> + Sync,
) {
    let released = Mutex::new(Vec::new());
    let ended = world.ranks(ranks).launch(|group| -> Result<(), Failure> {
        for round in 0.. {
            if group.rank() == culprit && round == at {
                return way.go();
            }
            if let Err(error) = f(&group) {
                released.lock().unwrap().push(error.clone());
                // Once failed, always failed.
                assert!(matches!(group.barrier(), Err(Error::Peer { .. })));
                return Err(error.into());
            }
        }
        Ok(())
    });
    let released = released.into_inner().unwrap();
    if !ended.is_empty() {
        assert_eq!(released.len(), world.here(ranks).filter(|rank| *rank != culprit).count(), "{released:?}");
    }
    check_failed(world, ended, culprit, way);
    for error in released {
        let Error::Peer { rank, operation, cause } = &error else { panic!("{error}") };
        assert_eq!(*rank, Rank(culprit));
        assert!(operation.contains("group `"), "{operation}");
        assert!(cause.contains("out of luck") || matches!(way, Way::Return), "{cause}");
    }
}

pub fn in_a_blocking_collective(world: &World) {
    for way in WAYS {
        for which in [(2, 0, 0), (2, 1, 0), (2, 1, 5), (3, 1, 2), (4, 3, 1), (8, 5, 3)] {
            fails(world, which, way, |group| sum(group).map(drop));
        }
    }
}

pub fn in_a_started_collective(world: &World) {
    for way in WAYS {
        for which in [(2, 0, 0), (2, 1, 3), (3, 1, 2), (4, 3, 1)] {
            fails(world, which, way, |group| {
                let pending = group.start_all_reduce(Tensor::<1>::ones([8], &Device::flex()), ReduceOp::Sum)?;
                pending.wait().map(drop)
            });
        }
    }
}

pub fn in_a_barrier_a_split_and_an_exchange_of_counts(world: &World) {
    for way in WAYS {
        fails(world, (3, 1, 2), way, ProcessGroup::barrier);
        fails(world, (3, 2, 1), way, |group| group.split("new", 0, 0).map(drop));
        fails(world, (2, 0, 1), way, |group| group.all_to_all_counts(&[1, 2]).map(drop));
    }
}

/// Rank 0 waits for rank 1 in a group that never hears of rank 3, which fails.
pub fn in_another_group_than_those_who_wait(world: &World) {
    for way in WAYS {
        let noticed = AtomicUsize::new(0);
        let waits = |world: &ProcessGroup| {
            let half = world.split("half", world.rank() / 2, 0)?;
            let middle = world.split("middle", usize::from(matches!(world.rank(), 1 | 2)), 0)?;
            match world.rank() {
                3 => Ok(()),
                // Rank 0 waits for rank 1, which waits for rank 2, which waits for rank 3.
                0 => sum(&half).map(drop),
                1 => middle.barrier(),
                _ => half.barrier(),
            }
        };
        let ended = world.ranks(4).launch(|world| -> Result<(), Failure> {
            // It may be noticed in the end of a split already, which rank 3 has behind it.
            waits(&world).inspect_err(|error| {
                assert!(matches!(error, Error::Peer { rank: Rank(3), .. }), "{error}");
                noticed.fetch_add(1, Ordering::Relaxed);
            })?;
            if world.rank() == 3 { way.go() } else { Ok(()) }
        });
        if !ended.is_empty() {
            assert_eq!(noticed.into_inner(), world.here(4).filter(|rank| *rank != 3).count());
        }
        check_failed(world, ended, 3, way);
    }
}

pub fn while_started_collectives_are_outstanding(world: &World) {
    for way in WAYS {
        let ended = world.ranks(3).launch(|group| -> Result<(), Failure> {
            let x = || Tensor::<1>::ones([1000], &Device::flex());
            let first = group.start_all_reduce(x(), ReduceOp::Sum)?;
            let second = (group.rank() != 1).then(|| group.start_all_reduce(x(), ReduceOp::Sum)).transpose()?;
            if group.rank() == 1 {
                // The first was started and will be taken part in; it is not waited for.
                return way.go();
            }
            let first = first.wait();
            // On a device both are under way together, and end together.
            if matches!(way, Way::Return) && world.kind.ends_calls_in_order() {
                assert!(first.is_ok(), "{first:?}");
            }
            second.map(|second| second.wait()).transpose()?;
            Ok(())
        });
        check_failed(world, ended, 1, way);
    }
}

pub fn while_abandoned_collectives_are_outstanding(world: &World) {
    // Nobody waits for the abandoned call, and nothing hangs; but rank 1 has not taken part in it.
    let ended = world.ranks(2).launch(|group| -> Result<(), Failure> {
        if group.rank() == 0 {
            drop(group.start_all_reduce(Tensor::<1>::ones([1000], &Device::flex()), ReduceOp::Sum)?);
        }
        Ok(())
    });
    check_failed(world, ended, 1, Way::Return);
}

pub fn a_group_that_outlives_its_rank_does_not_hang(world: &World) {
    let begin = |group: ProcessGroup| {
        let unused = group.split("unused", 0, 0).unwrap();
        let x = Tensor::<1>::ones([1000], &Device::flex());
        let pending = (group.rank() == 0).then(|| group.start_all_reduce(x, ReduceOp::Sum).unwrap());
        (unused, group, pending)
    };
    world.ranks(2).outlived().fail(begin, |groups, (rank, _)| {
        assert_eq!(rank, Rank(1));
        for (rank, (unused, group, pending)) in world.here(2).zip(groups) {
            let error = pending.map(|pending| pending.wait().unwrap_err());
            assert_eq!(matches!(error, Some(Error::Peer { rank: Rank(1), .. })), rank == 0, "{error:?}");
            for group in [unused, group] {
                assert!(matches!(group.barrier(), Err(Error::Invalid { .. })), "it belongs to the rank's thread");
            }
        }
    });
}

pub fn in_a_backward_pass(world: &World) {
    for way in WAYS {
        // A graph that is not walked back through is swept up some time later.
        let ended = world.ranks(2).outlived().launch(|group| -> Result<(), Failure> {
            let x = Tensor::<1>::ones([4], &Device::flex().autodiff()).require_grad();
            let loss = epl_comm::copied(x, &group).local().sum();
            if group.rank() == 1 {
                return way.go();
            }
            let _ = loss.backward();
            Ok(())
        });
        check_failed(world, ended, 1, way);
    }
}

pub fn a_failure_that_every_rank_makes_up_for_is_the_failure_of_the_run(world: &World) {
    let life = |group: ProcessGroup| {
        if group.rank() == 1 {
            group.abort(&Error::invalid("enough"));
        }
        group.barrier().is_err()
    };
    world.fail(2, life, |released, failure| {
        assert!(released.iter().all(|is_released| *is_released), "{released:?}");
        let operation = "the run, whose ranks here all returned well".into();
        assert_eq!(failure, (Rank(1), Error::Peer { rank: Rank(1), operation, cause: "enough".into() }));
    });
}

/// An error type that cannot even be made.
#[derive(Debug)]
struct Hopeless;

impl fmt::Display for Hopeless {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("hopeless")
    }
}

impl From<Error> for Hopeless {
    fn from(_: Error) -> Self {
        Self
    }
}

pub fn an_error_that_panics_does_not_hang_either(world: &World) {
    let released = Mutex::new(None);
    let ended = world.ranks(2).launch(|group| match group.rank() {
        0 => group.barrier().map_err(|error| {
            *released.lock().unwrap() = Some(error.to_string());
            Hopeless::from(error)
        }),
        _ => Err(Hopeless),
    });
    let is_made = !ended.is_empty();
    assert!(ended.iter().all(|process| matches!(process.ended, Err((Rank(1), Hopeless)))));
    if is_made && world.here(2).contains(&0) {
        let released = released.into_inner().unwrap().unwrap();
        assert!(released.contains("its error has no text, as its Display panicked: hopeless"), "{released}");
    }
}

/// An error that ends the world when it is displayed; or another one.
struct Ending(Option<ProcessGroup>);

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = &self.0 {
            group.abort(&Error::invalid("displayed"));
        }
        f.write_str("ending")
    }
}

impl From<Error> for Ending {
    fn from(_: Error) -> Self {
        Self(None)
    }
}

pub fn an_error_may_use_its_group_when_it_is_displayed(world: &World) {
    let ended = world.ranks(2).outlived().launch(|group| match group.rank() {
        0 => {
            let error = group.barrier().unwrap_err();
            assert!(matches!(&error, Error::Peer { rank: Rank(1), cause, .. } if cause == "displayed"), "{error}");
            Ok(())
        }
        _ => Err(Ending(Some(group))),
    });
    for (own, rank, Ending(group)) in world.failures(ended) {
        assert_eq!((rank, group.is_some()), (Rank(1), own.contains(&1)));
    }
}

/// An error whose conversion takes as long as the others here run, and then panics.
struct Late;

/// How many ranks here are to be released before it may be converted.
static NOT_YET_RELEASED: AtomicUsize = AtomicUsize::new(0);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("late")
    }
}

impl From<Error> for Late {
    fn from(error: Error) -> Self {
        while NOT_YET_RELEASED.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        panic!("late: {error}")
    }
}

pub fn the_others_are_released_before_an_error_is_converted(world: &World) {
    // The others are counted for a whole process.
    world.alone(|| {
        NOT_YET_RELEASED.store(world.here(3).filter(|rank| *rank != 1).count(), Ordering::Release);
        let run = || {
            let ended = world.ranks(3).launch(|group| -> Result<(), Late> {
                if group.rank() == 1 {
                    panic!("out of luck");
                }
                assert!(matches!(group.barrier(), Err(Error::Peer { rank: Rank(1), .. })));
                NOT_YET_RELEASED.fetch_sub(1, Ordering::Release);
                Ok(())
            });
            Ok(ended.len())
        };
        match epl_comm::catch(run).and_then(|ended| ended) {
            // None was made.
            Ok(processes) => assert_eq!(processes, 0, "the conversion panics"),
            Err(Error::Panic { message }) => {
                // Of another process.
                let is_away = world.here(3).len() < 3 || !world.kind.ends_together();
                let of_a_peer = message.starts_with("late: rank 1 failed: panicked: out of luck (noticed in ");
                assert!(message == "late: panicked: out of luck" || (is_away && of_a_peer), "{message}");
            }
            Err(error) => panic!("{error}"),
        }
    });
}

/// A tensor whose memory ends in the middle of a number: Burn cannot make it whole.
fn broken() -> Tensor<1> {
    let memory = Bytes::from_elems(vec![0_u8; 7]);
    let tensor = FlexTensor::new(memory, Layout::new(Shape::new([1]), vec![1], 0), DType::F32);
    Tensor::from_primitive::<Flex>(tensor)
}

pub fn a_panic_inside_a_collective_is_no_secret_when_its_caller_catches_it(world: &World) {
    for started in [false, true] {
        let life = |group: ProcessGroup| {
            if group.rank() != 1 {
                return group.all_reduce(Tensor::<1>::ones([1], &Device::flex()), ReduceOp::Sum).unwrap_err();
            }
            if started {
                return group.start_all_reduce(broken(), ReduceOp::Sum).unwrap().wait().unwrap_err();
            }
            epl_comm::catch(|| group.all_reduce(broken(), ReduceOp::Sum)).unwrap_err()
        };
        world.fail(3, life, |errors, (rank, _)| {
            assert_eq!(rank, Rank(1));
            for (rank, error) in world.here(3).zip(errors) {
                match error {
                    Error::Panic { .. } if rank == 1 => {}
                    Error::Peer { rank: Rank(1), cause, .. } if rank != 1 => {
                        assert!(cause.starts_with("it panicked in a collective: "), "{cause}");
                    }
                    error => panic!("rank {rank}: {error}"),
                }
            }
        });
    }
}

/// Copied before the call has a number: the rank can still make it.
pub fn a_panic_before_a_collective_leaves_the_world_alone(world: &World) {
    let sums = world.run(2, |group| {
        let x = || Tensor::<1>::ones([2], &Device::flex());
        if group.rank() == 1 {
            let strided = || {
                let layout = Layout::new(Shape::new([2]), vec![0], 0);
                let tensor = FlexTensor::new(Bytes::from_elems(vec![0_u8; 7]), layout, DType::F32);
                Tensor::<1>::from_primitive::<Flex>(tensor)
            };
            for _ in 0..2 {
                assert!(epl_comm::catch(|| group.all_reduce(strided(), ReduceOp::Sum)).is_err());
                assert!(epl_comm::catch(|| group.start_all_reduce(strided(), ReduceOp::Sum)).is_err());
            }
        }
        let started = group.start_all_reduce(x(), ReduceOp::Sum).unwrap();
        let sum = group.all_reduce(x(), ReduceOp::Sum).unwrap();
        [started.wait().unwrap(), sum].map(|x| x.into_data().iter::<f32>().collect::<Vec<_>>())
    });
    assert!(sums.iter().flatten().all(|sum| *sum == [2.0, 2.0]), "{sums:?}");
}
