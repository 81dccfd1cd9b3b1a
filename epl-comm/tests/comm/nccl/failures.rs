//! NCCL that fails or hangs, and ranks that do: nobody waits for ever, and everybody is told why.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Mutex;

use burn::tensor::{Device, Tensor};
use epl_comm::nccl::Launcher;
use epl_comm::{Error, ProcessGroup, Rank, ReduceOp, Result, unwind};

use crate::fake::Fake;
use crate::watchdog::within_seconds;

fn sum(group: &ProcessGroup) -> Result<()> {
    group.all_reduce(Tensor::<1>::ones([8], &Device::flex()), ReduceOp::Sum).map(drop)
}

/// Runs ranks whose world fails: what each was told, and the failure of the run. No communicator is left.
fn failing(
    fake: &Fake,
    launcher: Launcher,
    f: impl Fn(&ProcessGroup) -> Result<()> + Sync,
) -> (Vec<Error>, (Rank, Error)) {
    let told = Mutex::new(BTreeMap::new());
    let ended = fake.run_on(launcher, true, |group| {
        let result = f(&group);
        if let Err(error) = &result {
            told.lock().unwrap().insert(group.rank(), error.clone());
            let is_own = matches!(error, Error::Invalid { .. });
            assert!(is_own || sum(&group).is_err(), "after a failure every call fails");
        }
        result
    });
    let failure = ended.unwrap_err();
    assert_eq!(fake.count("made"), fake.count("aborted") + fake.count("destroyed"), "{failure:?}");
    assert_eq!(fake.count("misused"), 0, "{failure:?}");
    (told.into_inner().unwrap().into_values().collect(), failure)
}

/// All but the culprit are told who it was.
fn check(told: &[Error], culprit: usize, cause: &str) {
    assert!(!told.is_empty());
    for error in told {
        match error {
            Error::Peer { rank, cause: found, .. } => assert!(rank.0 == culprit && found.contains(cause), "{error}"),
            error => assert!(error.to_string().contains(cause), "{error}"),
        }
    }
}

#[test]
fn a_call_that_nccl_refuses() {
    within_seconds(60, || {
        let fake = Fake::with("fail", "ncclAllReduce:1");
        let (told, (rank, error)) = failing(&fake, fake.launcher(3), sum);
        assert_eq!((rank, told.len()), (Rank(1), 3));
        let Error::Engine { message } = &error else { panic!("{error:?}") };
        assert!(message.contains("ncclInternalError") && message.contains("NCCL_DEBUG"), "{message}");
        check(&told, 1, "ncclInternalError");
        assert_eq!(fake.count("aborted"), 3);
    });
}

#[test]
fn a_fault_that_comes_up_later() {
    within_seconds(60, || {
        let fake = Fake::with("async", "ncclAllReduce:2");
        let (told, (rank, error)) = failing(&fake, fake.launcher(3), sum);
        assert_eq!((rank, told.len()), (Rank(2), 3));
        assert!(error.to_string().contains("another rank's process or its network is gone"), "{error}");
        check(&told, 2, "ncclRemoteError");
    });
}

#[test]
fn a_call_that_hangs_until_it_is_aborted() {
    within_seconds(60, || {
        for function in ["ncclAllReduce", "ncclAllReduce:0", "ncclAllReduce:1"] {
            let fake = Fake::with("hang", function);
            let launcher = fake.launcher(2).time_limit(Duration::from_secs(2));
            let (told, (_, error)) = failing(&fake, launcher, sum);
            assert_eq!(told.len(), 2);
            assert!(error.to_string().contains("has been in NCCL for"), "{error}");
            assert!(error.to_string().contains("all_reduce(sum) of f32 [8], call 1 of group `world`"), "{error}");
            assert_eq!(fake.count("aborted"), 2);
        }
    });
}

#[test]
fn a_started_call_that_hangs() {
    within_seconds(60, || {
        let fake = Fake::with("hang", "ncclAllReduce:1");
        let launcher = fake.launcher(2).time_limit(Duration::from_secs(2));
        let (told, _) = failing(&fake, launcher, |group| {
            group.start_all_reduce(Tensor::<1>::ones([8], &Device::flex()), ReduceOp::Sum)?.wait().map(drop)
        });
        assert_eq!(told.len(), 2);
    });
}

#[test]
fn a_communicator_that_is_never_made() {
    within_seconds(60, || {
        let fake = Fake::with("hang", "ncclCommInitRankConfig:1");
        let ended = fake.run_on(fake.launcher(2).time_limit(Duration::from_secs(2)), true, |_| Ok::<_, Error>(()));
        let (_, error) = ended.unwrap_err();
        assert!(error.to_string().contains("has been in NCCL for"), "{error}");
        assert_eq!((fake.count("made"), fake.count("aborted")), (2, 2));

        let fake = Fake::with("fail", "ncclCommInitRankConfig:0");
        let ended = fake.run_on(fake.launcher(2), true, |_| Ok::<_, Error>(()));
        let (rank, error) = ended.unwrap_err();
        assert_eq!(rank, Rank(0));
        assert!(error.to_string().contains("ncclInvalidUsage"), "{error}");
    });
}

/// Ways for a rank to stop taking part.
#[derive(Clone, Copy, Debug)]
enum Way {
    Error,
    Panic,
    Unwind,
    Return,
}

#[test]
fn a_rank_that_stops_releases_those_who_wait() {
    within_seconds(100, || {
        for way in [Way::Error, Way::Panic, Way::Unwind, Way::Return] {
            for at in [0, 2] {
                let fake = Fake::new();
                let (told, (rank, _)) = failing(&fake, fake.launcher(3), |group| {
                    for round in 0.. {
                        if (group.rank(), round) == (1, at) {
                            return match way {
                                Way::Error => Err(Error::invalid("out of luck")),
                                Way::Panic => panic!("out of luck"),
                                Way::Unwind => unwind(Error::invalid("out of luck")),
                                Way::Return => Ok(()),
                            };
                        }
                        sum(group)?;
                    }
                    Ok(())
                });
                assert_eq!(rank, Rank(1), "{way:?}");
                let cause = if matches!(way, Way::Return) { "returned without taking part" } else { "out of luck" };
                check(&told, 1, cause);
            }
        }
    });
}

#[test]
fn members_that_make_different_calls_touch_no_memory() {
    within_seconds(60, || {
        let fake = Fake::new();
        let (told, (rank, error)) = failing(&fake, fake.launcher(3), |group| {
            sum(group)?;
            let len = if group.rank() == 2 { 5 } else { 4 };
            group.all_reduce(Tensor::<1>::ones([len], &Device::flex()), ReduceOp::Sum).map(drop)
        });
        assert_eq!((rank, fake.count("ncclAllReduce")), (Rank(2), 3));
        assert!(told.iter().all(|told| *told == error), "{told:?}");
        let Error::Mismatch { sequence: 2, second: Rank(2), second_is_odd: true, .. } = error else {
            panic!("{error:?}")
        };
    });
}

#[test]
fn a_rank_that_does_not_come() {
    within_seconds(60, || {
        let fake = Fake::new();
        let (told, (rank, _)) = failing(&fake, fake.launcher(2).time_limit(Duration::from_secs(1)), |world| {
            if world.rank() == 1 {
                std::thread::sleep(Duration::from_secs(3));
            }
            sum(world)
        });
        assert_eq!(rank, Rank(1));
        assert!(told.iter().all(|error| matches!(error, Error::Timeout { .. })), "{told:?}");
    });
}
