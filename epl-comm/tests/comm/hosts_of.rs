//! Ranks of several hosts, beside the cases that are run on hosts of two: groups that lie in hosts in every way, and what
//! goes wrong between hosts.

use std::collections::BTreeMap;
use std::sync::Mutex;

use burn::tensor::{Bool, BoolStore, DType, Device, Float, Int, Tensor};
use epl_comm::{Error, Pool, ProcessGroup, Rank, ReduceOp, local};

use crate::exercise::Exercise;
use crate::watchdog::within_seconds;

/// Runs `f` on ranks of hosts of so many, to which every buffer is large.
fn run_hosts<T: Send>(ranks: usize, per_host: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    run_on(local::Launcher::new(ranks).hosts_of(per_host).eager_limit(0), f)
}

fn run_on<T: Send>(launcher: local::Launcher, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    launcher.run(|group| Ok::<T, Error>(f(group))).unwrap_or_else(|(rank, error)| panic!("{rank}: {error}"))
}

/// Runs `f` on ranks whose world fails; what each returned, and the failure of the run.
fn run_failing<T: Send>(
    launcher: local::Launcher,
    ranks: usize,
    f: impl Fn(ProcessGroup) -> T + Sync,
) -> (Vec<T>, (Rank, Error)) {
    let seen = Mutex::new(BTreeMap::new());
    let ended = launcher.run(|group| {
        let (rank, value) = (group.rank(), f(group));
        seen.lock().unwrap().insert(rank, value);
        Ok::<_, Error>(())
    });
    let (seen, failure) = (seen.into_inner().unwrap(), ended.expect_err("a world that failed is a failed run"));
    assert_eq!(seen.len(), ranks, "{failure:?}");
    (seen.into_values().collect(), failure)
}

/// Everything, in one element type that is summed and one that is not, blocking and started: what a type is makes no
/// difference to the way that it goes.
fn exercise_ways(group: &ProcessGroup) {
    Exercise { group, dtype: DType::F32, started: false, device: Device::flex() }.all::<Float>();
    Exercise { group, dtype: DType::I64, started: true, device: Device::flex() }.all::<Int>();
    Exercise { group, dtype: DType::Bool(BoolStore::Native), started: true, device: Device::flex() }.moves::<Bool>();
}

#[test]
fn every_number_of_ranks_over_hosts_of_every_size() {
    for (ranks, per_host) in [(2, 1), (2, 2), (3, 2), (4, 2), (4, 3), (5, 2), (6, 3), (8, 4)] {
        run_hosts(ranks, per_host, |group| exercise_ways(&group));
    }
}

#[test]
fn hosts_that_lie_in_larger_ones() {
    for (ranks, per_host, larger) in [(4, 1, 2), (4, 2, 2), (8, 2, 4), (7, 2, 4), (6, 3, 6), (8, 1, 4)] {
        run_on(local::Launcher::new(ranks).hosts_of(per_host).hosts_of(larger), |world| {
            exercise_ways(&world);
            splits(&world, 2);
        });
    }
    run_on(local::Launcher::new(8).hosts_of(1).hosts_of(2).hosts_of(4), |world| exercise_ways(&world));
}

#[test]
fn hosts_that_do_not_fit_are_refused() {
    for (hosts, told) in [
        (&[0][..], "hosts of 0 ranks; give each at least 1"),
        (&[2, 0], "hosts of 0 ranks"),
        (&[2, 3], "hosts of 2 ranks in hosts of 3; the second is a multiple of the first"),
    ] {
        let launcher = hosts.iter().fold(local::Launcher::new(6), |launcher, ranks| launcher.hosts_of(*ranks));
        let (_, error) = launcher.run(|group| group.barrier()).unwrap_err();
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[test]
fn a_world_of_none_is_refused() {
    for launcher in [local::Launcher::new(0), local::Launcher::new(0).hosts_of(2)] {
        let (rank, error) = launcher.run(|_| Ok::<_, Error>(())).unwrap_err();
        assert_eq!((rank, error.to_string()), (Rank(0), "a world of 0 ranks; run at least 1".to_string()));
    }
}

#[test]
fn groups_that_lie_across_hosts_in_every_way() {
    run_hosts(6, 2, |world| {
        splits(&world, 2);
        exercise_ways(&world);
    });
}

/// Groups of a world, inside hosts of so many ranks and across them.
fn splits(world: &ProcessGroup, per_host: usize) {
    let (me, last) = (world.rank(), world.size() - 1);
    // Inside a host; one of each; two of two hosts and one of a third; in reversed order; every second.
    for (name, color, key) in [
        ("host", me / per_host, me),
        ("row", me % per_host, me),
        ("uneven", usize::from(me == last), me),
        ("reversed", 0, last - me),
        ("mixed", usize::from(me == 0 || me == 3), last - me),
    ] {
        let group = world.split(name, color, key).unwrap();
        exercise_ways(&group);
        let again = group.split_by("again", |member| (member % 2, member)).unwrap();
        exercise_ways(&again);
        // The group goes on, though its members need not have asked each other.
        let pool = Pool::new(&group, 2).unwrap();
        let sums = |group: &ProcessGroup| {
            let x = Tensor::<1>::ones([3], &Device::flex());
            group.all_reduce(x, ReduceOp::Sum).unwrap().into_data().iter::<f32>().next()
        };
        assert_eq!(sums(&group), Some(group.size() as f32));
        drop(pool);
        assert_eq!(sums(world), Some(world.size() as f32));
    }
}

#[test]
fn sixteen_bits_are_summed_in_more_and_rounded_once() {
    // In bf16, 256 + 1 is 256 again: only a sum that is rounded once sees the ones.
    let sums = run_hosts(4, 2, |group| {
        let value = [256.0, 1.0, 1.0, 1.0][group.rank()];
        let x = Tensor::<1>::full([3], value, (&Device::flex(), DType::BF16));
        let mean = group.all_reduce(x.clone(), ReduceOp::Mean).unwrap();
        let sum = group.all_reduce(x, ReduceOp::Sum).unwrap();
        assert_eq!((sum.dtype(), mean.dtype()), (DType::BF16, DType::BF16));
        (sum.into_data().iter::<f32>().next(), mean.into_data().iter::<f32>().next())
    });
    // 259 lies between 258 and 260, nearer to neither: to even. 64.75 between 64.5 and 65 likewise.
    assert_eq!(sums, [(Some(260.0), Some(65.0)); 4]);
}

#[test]
fn half_precision_and_small_integers_over_hosts() {
    run_hosts(3, 2, |group| {
        for dtype in [DType::F16, DType::BF16, DType::F64] {
            Exercise { group: &group, dtype, started: true, device: Device::flex() }.all::<Float>();
        }
        for dtype in [DType::I16, DType::I8] {
            Exercise { group: &group, dtype, started: false, device: Device::flex() }.all::<Int>();
        }
    });
}

/// A call of one member; its result does not matter.
type Call = fn(&ProcessGroup) -> epl_comm::Result<()>;

/// What each rank is told when one of them calls something else.
fn mismatch(launcher: local::Launcher, ranks: usize, odd: usize, unusual: Call) -> Vec<Error> {
    let (errors, _) = run_failing(launcher, ranks, |group| {
        let x = Tensor::<1>::zeros([4], &Device::flex());
        // Another host may still be in the first call when this one has found that its members differ in the second.
        let first = group.all_reduce(x.clone(), ReduceOp::Sum);
        let second =
            |_| if group.rank() == odd { unusual(&group) } else { group.all_reduce(x, ReduceOp::Sum).map(drop) };
        first.and_then(second).unwrap_err()
    });
    errors
}

#[test]
fn calls_that_do_not_fit_are_told_as_they_were_made() {
    within_seconds(60, || {
        let hosts = local::Launcher::new(4).hosts_of(2);
        let hosts_of_hosts = local::Launcher::new(8).hosts_of(2).hosts_of(4);
        for (launcher, ranks, odd) in [0, 1, 2, 3].map(|odd| (&hosts, 4, odd)).into_iter().chain([
            (&hosts_of_hosts, 8, 0),
            (&hosts_of_hosts, 8, 3),
            (&hosts_of_hosts, 8, 6),
        ]) {
            let others: [(Call, &str); 4] = [
                (|group| group.barrier(), "barrier"),
                (
                    |group| group.all_reduce(Tensor::<1>::zeros([5], &Device::flex()), ReduceOp::Sum).map(drop),
                    "all_reduce(sum) of f32 [5]",
                ),
                (
                    |group| group.all_gather(Tensor::<1>::zeros([4], &Device::flex()), 0).map(drop),
                    "all_gather of f32 [4]",
                ),
                (
                    |group| group.reduce(Tensor::<1>::zeros([4], &Device::flex()), ReduceOp::Sum, 0).map(drop),
                    "reduce(sum, root 0)",
                ),
            ];
            for (unusual, text) in others {
                let errors = mismatch(launcher.clone(), ranks, odd, unusual);
                let told =
                    |error: &&Error| matches!(error, Error::Mismatch { group, sequence: 2, .. } if group == "world");
                let error = errors.iter().find(told).unwrap_or_else(|| panic!("{errors:?}")).to_string();
                assert!(error.contains(text) && error.contains("all_reduce(sum) of f32 [4]"), "{error}");
                assert!(
                    errors.iter().all(|error| matches!(error, Error::Mismatch { .. } | Error::Peer { .. })),
                    "{errors:?}"
                );
            }
        }
    });
}

#[test]
fn what_ends_of_an_exchange_do_not_agree_on_is_told() {
    within_seconds(20, || {
        let launcher = local::Launcher::new(4).hosts_of(2);
        let (errors, _) = run_failing(launcher, 4, |group| {
            let receive = if group.rank() == 3 { [1, 2, 1, 1] } else { [1; 4] };
            group.all_to_all_uneven(Tensor::<1>::zeros([4], &Device::flex()), &[1; 4], &receive).unwrap_err()
        });
        for error in errors {
            let Error::Mismatch { first: Rank(1), second: Rank(3), .. } = error else { panic!("{error:?}") };
            assert!(error.to_string().contains("sending 1 elements to rank 3"), "{error}");
            assert!(error.to_string().contains("expecting 2 from it"), "{error}");
        }
    });
}

#[test]
fn a_rank_that_fails_releases_those_of_all_hosts() {
    within_seconds(20, || {
        for culprit in 0..4 {
            let launcher = local::Launcher::new(4).hosts_of(2);
            let ended = launcher.run(|group| {
                assert!(group.rank() != culprit, "no more");
                group.barrier()
            });
            let (rank, error) = ended.unwrap_err();
            assert_eq!(rank, Rank(culprit));
            assert!(error.to_string().contains("no more"), "{error}");
        }
    });
}

#[test]
fn what_a_rank_has_started_goes_on_when_it_has_returned() {
    within_seconds(60, || {
        for early in 0..4 {
            let launcher = local::Launcher::new(4).hosts_of(2);
            let ended = launcher.run(|group| {
                let x = Tensor::<1>::full([3], group.rank() as f32, &Device::flex());
                let start = |_| group.start_all_reduce(x.clone(), ReduceOp::Sum);
                let started = (0..20).map(start).collect::<epl_comm::Result<Vec<_>>>()?;
                if group.rank() == early {
                    return Ok(6.0);
                }
                let sums = started.into_iter().map(|sum| Ok(sum.wait()?.max().into_scalar::<f32>()));
                Ok::<f32, Error>(sums.collect::<epl_comm::Result<Vec<_>>>()?.into_iter().fold(6.0, f32::min))
            });
            assert_eq!(ended.map_err(|error| error.1.to_string()), Ok(vec![6.0; 4]), "rank {early} returns first");
        }
    });
}

#[test]
fn a_rank_that_returns_with_a_started_call_outstanding_releases_those_of_all_hosts() {
    within_seconds(60, || {
        let launcher = local::Launcher::new(4).hosts_of(2);
        let ended = launcher.run(|group| {
            let others = group.split("others", usize::from(group.rank() == 0), 0)?;
            let x = Tensor::<1>::ones([4], &Device::flex());
            if group.rank() == 1 {
                drop(group.start_all_reduce(x, ReduceOp::Sum)?);
                return Ok(());
            }
            others.barrier()?;
            group.all_reduce(x, ReduceOp::Sum).map(drop)
        });
        let (rank, error) = ended.unwrap_err();
        assert_eq!(rank, Rank(1));
        assert!(
            error.to_string().contains("returned without taking part in barrier, call 1 of group `others`"),
            "{error}"
        );
    });
}

#[test]
fn ranks_of_one_host_that_wait_for_each_other_are_found() {
    within_seconds(20, || {
        let launcher = local::Launcher::new(4).hosts_of(2).no_time_limit();
        let (errors, _) = run_failing(launcher, 4, |group| {
            let life = || {
                let parts = [group.split("a", group.rank() / 2, 0)?, group.split("b", group.rank() / 2, 0)?];
                let [first, second] = if group.rank() == 0 { [0, 1] } else { [1, 0] }.map(|part: usize| &parts[part]);
                first.barrier()?;
                second.barrier()?;
                group.barrier()
            };
            life().unwrap_err()
        });
        for error in errors {
            let Error::Deadlock { circle } = &error else { panic!("{error:?}") };
            assert_eq!(circle.iter().map(|(rank, _)| rank.0).collect::<Vec<_>>(), [0, 1]);
        }
    });
}

/// Runs ranks of two hosts that end up in a circle of waits for calls that were started; checks that each is told of it.
/// `is_it` looks at the ranks of the circle and what they wait in.
fn started_circle(
    life: impl Fn(&ProcessGroup) -> epl_comm::Result<()> + Sync,
    is_it: impl Fn(&[(usize, &str)]) -> bool,
) {
    let launcher = local::Launcher::new(4).hosts_of(2).no_time_limit();
    let (errors, _) = run_failing(launcher, 4, |world| life(&world).unwrap_err());
    for error in errors {
        let Error::Deadlock { circle } = &error else { panic!("{error:?}") };
        let circle: Vec<(usize, &str)> = circle.iter().map(|(rank, call)| (rank.0, &**call)).collect();
        assert!(is_it(&circle), "{circle:?}");
    }
}

#[test]
fn waits_for_started_calls_are_found_in_a_circle_over_hosts() {
    within_seconds(20, || {
        for odd in 1..4 {
            let life = |world: &ProcessGroup| {
                let a = world.split("a", 0, 0)?;
                let x = Tensor::<1>::ones([8], &Device::flex());
                let first = a.start_all_reduce(x.clone(), ReduceOp::Sum)?;
                if world.rank() == odd {
                    world.barrier()?;
                }
                let second = a.start_all_reduce(x, ReduceOp::Sum)?;
                second.wait()?;
                first.wait()?;
                world.barrier()
            };
            started_circle(life, |circle| {
                let call = |rank: usize| {
                    if rank == odd {
                        "barrier, call 2 of group `world`"
                    } else {
                        "all_reduce(sum), call 2 of group `a`"
                    }
                };
                circle.len() == 2
                    && circle.iter().any(|(rank, _)| *rank == odd)
                    && circle.iter().all(|(rank, told)| *told == call(*rank))
            });
        }
    });
}

/// Ranks 1 and 3 lie in two hosts, whose leaders have started all that is asked of them.
#[test]
fn a_circle_of_ranks_that_lead_no_host_is_found() {
    within_seconds(20, || {
        let life = |world: &ProcessGroup| {
            let groups = [world.split("a", 0, 0)?, world.split("b", 0, 0)?];
            let start =
                |group: usize| groups[group].start_all_reduce(Tensor::<1>::ones([8], &Device::flex()), ReduceOp::Sum);
            let own = usize::from(world.rank() == 3);
            let first = start(own)?;
            if world.rank() % 2 == 1 {
                first.wait()?;
                return start(1 - own)?.wait().map(drop);
            }
            start(1 - own)?.wait()?;
            first.wait().map(drop)
        };
        started_circle(life, |circle| {
            *circle == [(1, "all_reduce(sum), call 1 of group `a`"), (3, "all_reduce(sum), call 1 of group `b`")]
        });
    });
}
