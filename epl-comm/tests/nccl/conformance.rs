//! Everything in `exercise`, and random programs.

use burn::tensor::{DType, Device, Float, Int};
use epl_comm::{Error, Pool, ReduceOp, Trace};
use proptest::prelude::*;

use crate::exercise::{Exercise, exercise};
use crate::fake::Fake;
use crate::program::programs;

fn exercise_ranks(ranks: usize) {
    let fake = Fake::new();
    for is_own in [false, true] {
        fake.run(ranks, is_own, |group| exercise(&group));
    }
}

#[test]
fn world_of_one() {
    exercise_ranks(1);
}

#[test]
fn world_of_two() {
    exercise_ranks(2);
}

#[test]
fn world_of_three() {
    exercise_ranks(3);
}

#[test]
fn world_of_four() {
    exercise_ranks(4);
}

#[test]
fn groups_of_every_second_rank_in_reversed_order() {
    let fake = Fake::new();
    fake.run(4, true, |world| {
        let group = world.split("pair", world.rank() % 2, 9 - world.rank()).unwrap();
        assert_eq!((group.name(), group.size(), group.rank()), ("pair", 2, 1 - world.rank() / 2));
        assert_eq!(group.global(0).0, world.rank() % 2 + 2);
        exercise(&group);
        exercise(&world);
    });
    assert_eq!(fake.count("ncclCommSplit"), 4, "a part is made by dividing the communicator");
}

#[test]
fn groups_of_different_sizes_and_groups_of_groups() {
    Fake::new().run(4, true, |world| {
        // A color larger than what NCCL takes for one.
        let color = if world.rank() == 1 { usize::MAX >> 1 } else { 0 };
        let group = world.split("three and one", color, world.rank()).unwrap();
        assert_eq!(group.size(), if world.rank() == 1 { 1 } else { 3 });
        let inner = group.split("inner", group.rank() % 2, 0).unwrap();
        exercise(&inner);
        exercise(&group);
    });
}

#[test]
fn small_whole_numbers_and_those_that_nccl_has_not() {
    for ranks in [2, 3] {
        Fake::new().run(ranks, true, |group| {
            for (dtype, started) in [(DType::I16, false), (DType::I8, true)] {
                Exercise { group: &group, dtype, started, device: Device::flex() }.all::<Int>();
            }
        });
    }
}

#[test]
fn a_traced_group_and_results_on_an_autodiff_device() {
    let trace = Trace::new();
    Fake::new().run(2, true, |group| {
        exercise(&group.traced(&trace));
        let device = Device::flex().autodiff();
        Exercise { group: &group, dtype: DType::F32, started: false, device }.all::<Float>();
    });
    assert!(!trace.events().is_empty());
}

#[test]
fn numbers_of_the_host() {
    for ranks in 1..=3 {
        Fake::new().run(ranks, true, |group| {
            let me = group.rank();
            let sums = group.all_reduce_values(&[me as f64, 0.5], ReduceOp::Sum).unwrap();
            assert_eq!(sums, [(0..ranks).sum::<usize>() as f64, 0.5 * ranks as f64]);
            assert_eq!(group.all_reduce_values(&[], ReduceOp::Max).unwrap(), [0.0; 0]);
            let counts = group.all_gather_counts(&[me as i64, -1]).unwrap();
            assert_eq!(counts, (0..ranks as i64).map(|member| vec![member, -1]).collect::<Vec<_>>());
        });
    }
}

/// Every communicator has a stream of its own.
#[test]
fn several_communicators_are_in_flight_together() {
    let fake = Fake::new();
    let ended = fake.run_on(fake.launcher(2).lanes(3).check_order(), true, |group| {
        let pool = Pool::new(&group, 8)?;
        let x = |number: usize| burn::tensor::Tensor::<1>::full([100 + number], number as f32, &Device::flex());
        let started: Vec<_> = (0..12)
            .map(|number| pool.communicator(number).start_all_reduce(x(number), ReduceOp::Sum))
            .collect::<Result<_, _>>()?;
        for (number, sum) in started.into_iter().enumerate() {
            assert_eq!(sum.wait()?.into_data(), x(2 * number).slice([0..100 + number]).into_data());
        }
        Ok::<_, Error>(())
    });
    assert!(ended.is_ok(), "{ended:?}");
    assert_eq!((fake.count("made"), fake.count("misused")), (2 + 3 * 2, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_give_what_the_model_gives(program in programs(1..=4)) {
        let fake = Fake::new();
        let ended = fake.run_on(fake.launcher(program.ranks).check_order(), program.eager_limit == 0, |world| {
            let groups = program.groups(&world)?;
            let mut results = Vec::new();
            for (index, step) in program.steps.iter().enumerate() {
                results.push(step.issue(&groups[step.split], index)?);
            }
            for ((result, expected), step) in results.into_iter().zip(&program.steps) {
                assert_eq!(result()?, expected, "{step:?}");
            }
            Ok::<_, Error>(())
        });
        prop_assert!(ended.is_ok(), "{ended:?}");
        prop_assert_eq!(fake.count("misused"), 0);
    }
}
