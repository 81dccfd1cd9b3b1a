//! A rank that fails releases the others, and everybody is told who it was.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::tensor::{Device, Tensor};
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result, local, unwind};

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

/// Ranks 0 and 1 wait for each other in one group and never hear of rank 3's group, which fails.
#[test]
fn in_another_group_than_those_who_wait() {
    within_seconds(50, || {
        for way in WAYS {
            let noticed = AtomicUsize::new(0);
            let result = local::run(4, |world| -> Result<(), Failure> {
                let group = world.split("half", world.rank() / 2, 0)?;
                match world.rank() {
                    3 => return way.go(),
                    // Rank 0 waits for rank 1, which waits for rank 2, which waits for rank 3.
                    0 => sum(&group).map(drop),
                    1 => world.barrier(),
                    _ => group.barrier(),
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
        // Nobody waits, nobody fails: the abandoned call goes nowhere, and nothing hangs.
        let result = local::run(2, |group| -> Result<(), Failure> {
            if group.rank() == 0 {
                drop(group.start_all_reduce(Tensor::<1>::ones([1000], &Device::flex()), ReduceOp::Sum)?);
            }
            Ok(())
        });
        assert!(result.is_ok());
    });
}

#[test]
fn a_group_that_outlives_its_rank_does_not_hang() {
    within_seconds(50, || {
        let groups = local::run(2, |group| -> Result<_, Failure> {
            let unused = group.split("unused", 0, 0)?;
            let pending = (group.rank() == 0)
                .then(|| group.start_all_reduce(Tensor::<1>::ones([1000], &Device::flex()), ReduceOp::Sum))
                .transpose()?;
            Ok((unused, group, pending))
        });
        let mut groups = groups.unwrap_or_else(|(rank, error)| panic!("{rank}: {error}"));
        let (unused, group, pending) = groups.swap_remove(0);
        let error = pending.map(|pending| pending.wait().unwrap_err());
        assert!(matches!(error, Some(Error::Peer { rank: Rank(1), .. })), "{error:?}");
        assert!(matches!(unused.barrier(), Err(Error::Peer { .. })));
        assert!(matches!(group.barrier(), Err(Error::Invalid { .. })), "it belongs to the rank's thread");
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
fn an_error_that_every_rank_handles_is_no_failure_of_the_run() {
    within_seconds(50, || {
        let result = local::run(2, |group| -> Result<bool, Failure> {
            if group.rank() == 1 {
                group.abort(&Error::invalid("enough"));
            }
            Ok(group.barrier().is_err())
        });
        assert_eq!(result.ok(), Some(vec![true, true]));
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
        let run = || {
            local::run(2, |group| match group.rank() {
                0 => group.barrier().map_err(Hopeless::from),
                _ => Err(Hopeless),
            })
        };
        let error = epl_comm::catch(run).unwrap_err();
        assert_eq!(error, Error::Panic { message: "hopeless".into() });
    });
}

#[test]
fn a_world_of_none_is_refused() {
    let (rank, error) = local::run(0, |_| Ok::<_, Error>(())).unwrap_err();
    assert_eq!((rank, error.to_string()), (Rank(0), "a world needs at least one rank".to_string()));
}
