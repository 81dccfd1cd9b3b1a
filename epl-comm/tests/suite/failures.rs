//! A rank that fails releases the others, and everybody is told who it was.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Device, Shape, Tensor};
use epl_comm::testing::run_ranks;
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result, local, unwind};

use crate::failing::run_failing;
use crate::watchdog::within_seconds;

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

/// Runs `ranks` ranks that make `f`'s call over and over, until `culprit` goes its way before its call `at`.
fn fails(ranks: usize, culprit: usize, at: usize, way: Way, f: impl Fn(&ProcessGroup) -> Result<()> + Sync) {
    let released = Mutex::new(Vec::new());
    let result = local::run(ranks, |group| -> Result<(), Failure> {
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
    let (rank, error) = result.unwrap_err();
    assert_eq!(rank, Rank(culprit), "{error}");
    way.check(Rank(culprit), &error);
    let released = released.into_inner().unwrap();
    assert_eq!(released.len(), ranks - 1, "{released:?}");
    for error in released {
        let Error::Peer { rank, operation, cause } = &error else { panic!("{error}") };
        assert_eq!(*rank, Rank(culprit));
        assert!(operation.contains("group `"), "{operation}");
        assert!(cause.contains("out of luck") || matches!(way, Way::Return), "{cause}");
    }
}

#[test]
fn in_a_blocking_collective() {
    within_seconds(50, || {
        for way in WAYS {
            for (ranks, culprit, at) in [(2, 0, 0), (2, 1, 0), (2, 1, 5), (3, 1, 2), (4, 3, 1), (8, 5, 3)] {
                fails(ranks, culprit, at, way, |group| sum(group).map(drop));
            }
        }
    });
}

#[test]
fn in_a_started_collective() {
    within_seconds(50, || {
        for way in WAYS {
            for (ranks, culprit, at) in [(2, 0, 0), (2, 1, 3), (3, 1, 2), (4, 3, 1)] {
                fails(ranks, culprit, at, way, |group| {
                    let pending = group.start_all_reduce(Tensor::<1>::ones([8], &Device::flex()), ReduceOp::Sum)?;
                    pending.wait().map(drop)
                });
            }
        }
    });
}

#[test]
fn in_a_barrier_a_split_and_an_exchange_of_counts() {
    within_seconds(50, || {
        for way in WAYS {
            fails(3, 1, 2, way, ProcessGroup::barrier);
            fails(3, 2, 1, way, |group| group.split("new", 0, 0).map(drop));
            fails(2, 0, 1, way, |group| group.all_to_all_counts(&[1, 2]).map(drop));
        }
    });
}

/// Rank 0 waits for rank 1 in a group that never hears of rank 3, which fails.
#[test]
fn in_another_group_than_those_who_wait() {
    within_seconds(50, || {
        for way in WAYS {
            let noticed = AtomicUsize::new(0);
            let result = local::run(4, |world| -> Result<(), Failure> {
                let half = world.split("half", world.rank() / 2, 0)?;
                let middle = world.split("middle", usize::from(matches!(world.rank(), 1 | 2)), 0)?;
                match world.rank() {
                    3 => return way.go(),
                    // Rank 0 waits for rank 1, which waits for rank 2, which waits for rank 3.
                    0 => sum(&half).map(drop),
                    1 => middle.barrier(),
                    _ => half.barrier(),
                }
                .inspect_err(|error| {
                    assert!(matches!(error, Error::Peer { rank: Rank(3), .. }), "{error}");
                    noticed.fetch_add(1, Ordering::Relaxed);
                })?;
                Ok(())
            });
            let (rank, error) = result.unwrap_err();
            assert_eq!((rank, noticed.into_inner()), (Rank(3), 3), "{error}");
            way.check(Rank(3), &error);
        }
    });
}

#[test]
fn while_started_collectives_are_outstanding() {
    within_seconds(50, || {
        for way in WAYS {
            let result = local::run(3, |group| -> Result<(), Failure> {
                let x = || Tensor::<1>::ones([1000], &Device::flex());
                let first = group.start_all_reduce(x(), ReduceOp::Sum)?;
                let second = (group.rank() != 1).then(|| group.start_all_reduce(x(), ReduceOp::Sum)).transpose()?;
                if group.rank() == 1 {
                    // The first was started and will be taken part in; it is not waited for.
                    return way.go();
                }
                let first = first.wait();
                if matches!(way, Way::Return) {
                    assert!(first.is_ok(), "{first:?}");
                }
                second.map(|second| second.wait()).transpose()?;
                Ok(())
            });
            let (rank, error) = result.unwrap_err();
            assert_eq!(rank, Rank(1), "{error}");
            way.check(Rank(1), &error);
        }
    });
}

#[test]
fn while_abandoned_collectives_are_outstanding() {
    within_seconds(50, || {
        // Nobody waits for the abandoned call, and nothing hangs; but rank 1 has not taken part in it.
        let result = local::run(2, |group| -> Result<(), Failure> {
            if group.rank() == 0 {
                drop(group.start_all_reduce(Tensor::<1>::ones([1000], &Device::flex()), ReduceOp::Sum)?);
            }
            Ok(())
        });
        let (rank, error) = result.unwrap_err();
        assert_eq!(rank, Rank(1), "{error}");
        Way::Return.check(Rank(1), &error);
    });
}

#[test]
fn a_group_that_outlives_its_rank_does_not_hang() {
    within_seconds(50, || {
        let (mut groups, (rank, _)) = run_failing(2, |group| {
            let unused = group.split("unused", 0, 0).unwrap();
            let x = Tensor::<1>::ones([1000], &Device::flex());
            let pending = (group.rank() == 0).then(|| group.start_all_reduce(x, ReduceOp::Sum).unwrap());
            (unused, group, pending)
        });
        assert_eq!(rank, Rank(1));
        let (unused, group, pending) = groups.swap_remove(0);
        let error = pending.map(|pending| pending.wait().unwrap_err());
        assert!(matches!(error, Some(Error::Peer { rank: Rank(1), .. })), "{error:?}");
        for group in [unused, group] {
            assert!(matches!(group.barrier(), Err(Error::Invalid { .. })), "it belongs to the rank's thread");
        }
    });
}

#[test]
fn in_a_backward_pass() {
    within_seconds(50, || {
        for way in WAYS {
            let result = local::run(2, |group| -> Result<(), Failure> {
                let x = Tensor::<1>::ones([4], &Device::flex().autodiff()).require_grad();
                let loss = epl_comm::copied(x, &group).local().sum();
                if group.rank() == 1 {
                    return way.go();
                }
                let _ = loss.backward();
                Ok(())
            });
            let (rank, error) = result.unwrap_err();
            assert_eq!(rank, Rank(1), "{error}");
            way.check(Rank(1), &error);
        }
    });
}

#[test]
fn a_failure_that_every_rank_makes_up_for_is_the_failure_of_the_run() {
    within_seconds(50, || {
        let (released, failure) = run_failing(2, |group| {
            if group.rank() == 1 {
                group.abort(&Error::invalid("enough"));
            }
            group.barrier().is_err()
        });
        assert_eq!(released, [true, true]);
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

#[test]
fn an_error_that_panics_does_not_hang_either() {
    within_seconds(20, || {
        let released = Mutex::new(None);
        let result = local::run(2, |group| match group.rank() {
            0 => group.barrier().map_err(|error| {
                *released.lock().unwrap() = Some(error.to_string());
                Hopeless::from(error)
            }),
            _ => Err(Hopeless),
        });
        assert!(matches!(result, Err((Rank(1), Hopeless))));
        let released = released.into_inner().unwrap().unwrap();
        assert!(released.contains("its error has no text, as its Display panicked: hopeless"), "{released}");
    });
}

/// An error that ends the world when it is displayed.
struct Ending(ProcessGroup);

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.abort(&Error::invalid("displayed"));
        f.write_str("ending")
    }
}

impl From<Error> for Ending {
    fn from(error: Error) -> Self {
        panic!("{error}")
    }
}

#[test]
fn an_error_may_use_its_group_when_it_is_displayed() {
    within_seconds(20, || {
        let result = local::run(2, |group| match group.rank() {
            0 => {
                let error = group.barrier().unwrap_err();
                assert!(matches!(&error, Error::Peer { rank: Rank(1), cause, .. } if cause == "displayed"), "{error}");
                Ok(())
            }
            _ => Err(Ending(group)),
        });
        assert!(matches!(result, Err((Rank(1), _))));
    });
}

/// An error whose conversion takes as long as the others run, and then panics.
struct Late;

static OTHERS_ARE_RELEASED: AtomicUsize = AtomicUsize::new(0);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("late")
    }
}

impl From<Error> for Late {
    fn from(error: Error) -> Self {
        while OTHERS_ARE_RELEASED.load(Ordering::Acquire) < 2 {
            std::thread::yield_now();
        }
        panic!("late: {error}")
    }
}

#[test]
fn the_others_are_released_before_an_error_is_converted() {
    within_seconds(20, || {
        let run = || {
            local::run(3, |group| -> Result<(), Late> {
                if group.rank() == 1 {
                    panic!("out of luck");
                }
                assert!(matches!(group.barrier(), Err(Error::Peer { rank: Rank(1), .. })));
                OTHERS_ARE_RELEASED.fetch_add(1, Ordering::Release);
                Ok(())
            })
        };
        let Err(error) = epl_comm::catch(run) else { panic!("the conversion panics") };
        assert_eq!(error, Error::Panic { message: "late: panicked: out of luck".into() });
    });
}

/// A tensor whose memory ends in the middle of a number: Burn cannot make it whole.
fn broken() -> Tensor<1> {
    let memory = Bytes::from_elems(vec![0_u8; 7]);
    let tensor = FlexTensor::new(memory, Layout::new(Shape::new([1]), vec![1], 0), DType::F32);
    Tensor::from_primitive::<Flex>(tensor)
}

#[test]
fn a_panic_inside_a_collective_is_no_secret_when_its_caller_catches_it() {
    within_seconds(20, || {
        for started in [false, true] {
            let (errors, (rank, _)) = run_failing(3, |group| {
                if group.rank() != 1 {
                    return group.all_reduce(Tensor::<1>::ones([1], &Device::flex()), ReduceOp::Sum).unwrap_err();
                }
                if started {
                    return group.start_all_reduce(broken(), ReduceOp::Sum).unwrap().wait().unwrap_err();
                }
                epl_comm::catch(|| group.all_reduce(broken(), ReduceOp::Sum)).unwrap_err()
            });
            assert_eq!(rank, Rank(1));
            assert!(matches!(errors[1], Error::Panic { .. }), "{}", errors[1]);
            for error in [&errors[0], &errors[2]] {
                let Error::Peer { rank: Rank(1), cause, .. } = error else { panic!("{error}") };
                assert!(cause.starts_with("it panicked in a collective: "), "{cause}");
            }
        }
    });
}

/// Copied before the call has a number: the rank can still make it.
#[test]
fn a_panic_before_a_collective_leaves_the_world_alone() {
    within_seconds(20, || {
        let sums = run_ranks(2, |group| {
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
        assert_eq!(sums, [[[2.0, 2.0], [2.0, 2.0]], [[2.0, 2.0], [2.0, 2.0]]]);
    });
}

#[test]
fn a_world_of_none_is_refused() {
    let (rank, error) = local::run(0, |_| Ok::<_, Error>(())).unwrap_err();
    assert_eq!((rank, error.to_string()), (Rank(0), "a world of 0 ranks; run at least 1".to_string()));
}
