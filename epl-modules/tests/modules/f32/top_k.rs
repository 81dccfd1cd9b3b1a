//! The largest logits of classes that are split over the tensor axis, and whether a target is one of them.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use epl_comm::{EventKind, Split, Trace, shard_range};
use epl_core::testing::{self, config};
use epl_core::{Epl, launch, launch_traced};
use epl_modules::{split_argmax, split_equal, split_in_top_k, split_top_k};

const RANKS: [usize; 4] = [1, 2, 3, 4];

/// This rank's classes of whole rows.
fn split(rows: &[Vec<f32>], epl: &Epl) -> Split<2> {
    let (group, classes) = (epl.context().tensor(), rows[0].len());
    let mine = shard_range(classes, group.size(), group.rank());
    let values: Vec<f32> = rows.iter().flat_map(|row| row[mine.clone()].to_vec()).collect();
    let local = Tensor::from_data(TensorData::new(values, [rows.len(), mine.len()]), epl.place().device());
    Split::from_local(local, 1, classes, group)
}

/// The most likely classes, which are the same in all types: in those of 16 bits by tensor operations.
fn argmax(rows: &[Vec<f32>], epl: &Epl) -> Vec<i64> {
    let of = |dtype: DType| -> Vec<i64> {
        let logits = split(rows, epl);
        let (classes, group) = (logits.size(), logits.group().clone());
        let logits = Split::from_local(logits.local().cast(dtype), 1, classes, &group);
        split_argmax(logits).into_data().iter().collect()
    };
    let [single, others @ ..] = [DType::F32, DType::F64, DType::F16].map(of);
    assert!(others.iter().all(|other| *other == single), "{single:?}, in f64 and f16 {others:?}");
    single
}

fn targets(ids: &[i64], epl: &Epl) -> Tensor<1, Int> {
    Tensor::from_data(ids, epl.place().device())
}

/// Rows with and without ties, infinities, and equal numbers throughout.
fn rows() -> Vec<Vec<f32>> {
    let plain = |seed: usize| (0..13).map(|i| ((i * 7919 + seed * 613) % 97) as f32 - 40.0).collect();
    let ties = (0..13).map(|i| ((i * 5) % 4) as f32).collect();
    let infinite = (0..13).map(|i| if i % 3 == 1 { i as f32 } else { f32::NEG_INFINITY }).collect();
    let huge = (0..13).map(|i| if i % 5 == 2 { f32::INFINITY } else { -(i as f32) }).collect();
    vec![plain(1), plain(2), ties, vec![0.5; 13], vec![f32::NEG_INFINITY; 13], infinite, huge]
}

/// The ids of a row, the largest logit first, of equals the lowest id first.
fn ranked(row: &[f32]) -> Vec<i64> {
    let mut ids: Vec<i64> = (0..row.len() as i64).collect();
    ids.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
    ids
}

#[test]
fn the_largest_are_those_of_a_sort() {
    for ranks in RANKS {
        testing::run((1, ranks, 1), |epl| {
            for k in 1..=13 {
                let found: Vec<i64> = split_top_k(split(&rows(), &epl), k).into_data().iter().collect();
                let expected: Vec<i64> = rows().iter().flat_map(|row| ranked(row)[..k].to_vec()).collect();
                assert_eq!(found, expected, "k {k} on {ranks} ranks");
            }
            let first: Vec<i64> = split_top_k(split(&rows(), &epl), 1).into_data().iter().collect();
            assert_eq!(first, argmax(&rows(), &epl));
            Ok(())
        });
    }
}

#[test]
fn a_target_is_among_them_where_a_sort_has_it() {
    for ranks in RANKS {
        testing::run((1, ranks, 1), |epl| {
            for target in 0..13 {
                let all = targets(&[target; 7], &epl);
                for k in 1..=13 {
                    let found = split_in_top_k(split(&rows(), &epl), all.clone(), k).into_data();
                    let found: Vec<bool> = found.iter().collect();
                    let expected: Vec<bool> = rows().iter().map(|row| ranked(row)[..k].contains(&target)).collect();
                    assert_eq!(found, expected, "target {target}, k {k} on {ranks} ranks");
                }
                let equal: Vec<bool> = split_equal(split(&rows(), &epl), all).into_data().iter().collect();
                let expected: Vec<bool> = rows().iter().map(|row| ranked(row)[0] == target).collect();
                assert_eq!(equal, expected, "target {target} on {ranks} ranks");
            }
            Ok(())
        });
    }
}

#[test]
fn a_target_that_is_no_class_is_never_among_them() {
    testing::run((1, 2, 1), |epl| {
        let rows = vec![vec![-1.0, -2.0, -3.0], vec![1.0, 2.0, 3.0]];
        for k in 1..=3 {
            let found = split_in_top_k(split(&rows, &epl), targets(&[-100, -1], &epl), k);
            assert_eq!(found.into_data().iter::<bool>().collect::<Vec<_>>(), [false, false]);
        }
        Ok(())
    });
}

/// A NaN stands before all numbers; a target that is NaN is never right, and one behind a NaN is one place further.
#[test]
fn nan_counts_as_infinity() {
    let nan = f32::NAN;
    let rows = vec![
        vec![nan; 5],
        vec![0.0, 9.0, nan, 3.0, 4.0],
        vec![nan, 9.0, 5.0, 3.0, nan],
        vec![0.0, f32::INFINITY, nan, f32::INFINITY, 4.0],
    ];
    for ranks in RANKS {
        testing::run((1, ranks, 1), |epl| {
            let top: Vec<i64> = split_top_k(split(&rows, &epl), 3).into_data().iter().collect();
            assert_eq!(top, [0, 1, 2, 2, 1, 4, 0, 4, 1, 1, 2, 3], "{ranks} ranks");
            assert_eq!(argmax(&rows, &epl), [0, 2, 0, 1], "{ranks} ranks");
            let among = |ids: [i64; 4], k| -> Vec<bool> {
                split_in_top_k(split(&rows, &epl), targets(&ids, &epl), k).into_data().iter().collect()
            };
            assert_eq!(among([0, 2, 0, 2], 5), [false; 4], "targets that are NaN, {ranks} ranks");
            assert_eq!(among([4, 1, 1, 1], 1), [false, false, false, true]);
            assert_eq!(among([4, 1, 1, 3], 2), [false, true, false, false]);
            assert_eq!(among([4, 4, 1, 3], 3), [false, true, true, true]);
            let equal: Vec<bool> =
                split_equal(split(&rows, &epl), targets(&[0, 2, 0, 1], &epl)).into_data().iter().collect();
            assert_eq!(equal, [false, false, false, true]);
            Ok(())
        });
    }
}

/// As floats of 32 bits, ids above 2^24 would be rounded to even ones: here every second one matters.
#[test]
fn ids_above_2_to_the_24_are_exact() {
    const BASE: usize = 1 << 24;
    let classes = BASE + 9;
    let largest = [(BASE + 1, 5.0), (BASE + 7, 4.0), (BASE + 2, 3.0)];
    for ranks in [1, 2, 3] {
        testing::run((1, ranks, 1), |epl| {
            let (group, device) = (epl.context().tensor(), Device::flex());
            let mine = shard_range(classes, group.size(), group.rank());
            let mut values = vec![0.0_f32; mine.len()];
            for (id, logit) in largest.into_iter().filter(|(id, _)| mine.contains(id)) {
                values[id - mine.start] = logit;
            }
            let local = Tensor::<2>::from_data(TensorData::new(values, [1, mine.len()]), &device);
            let logits = || Split::from_local(local.clone(), 1, classes, group);
            let ids: Vec<i64> = split_top_k(logits(), largest.len()).into_data().iter().collect();
            assert_eq!(ids, largest.map(|(id, _)| id as i64), "{ranks} ranks");
            let is = |found: Tensor<1, burn::tensor::Bool>| found.into_data().iter::<bool>().next();
            for (place, id) in (BASE..BASE + 3).map(|id| (largest.iter().position(|(at, _)| *at == id), id)) {
                let target = Tensor::<1, Int>::from_data([id as i64], &device);
                assert_eq!(is(split_equal(logits(), target.clone())), Some(place == Some(0)), "{id}, {ranks} ranks");
                let expected = place.is_some_and(|place| place < 2);
                assert_eq!(is(split_in_top_k(logits(), target, 2)), Some(expected), "{id}, {ranks} ranks");
            }
            Ok(())
        });
    }
}

/// The shapes of what crosses the tensor axis.
fn crossing(f: impl Fn(&Epl) + Sync) -> Vec<Vec<usize>> {
    let trace = Trace::new();
    launch_traced(&config(1, 3, 1), Some(trace.clone()), |epl| {
        f(&epl);
        Ok(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let events = trace.events().into_iter().filter(|event| event.rank.0 == 0);
    let shape = |kind| match kind {
        EventKind::Collective { group, shape, .. } if group == "tensor" => Some(shape.to_vec()),
        _ => None,
    };
    events.filter_map(|event| shape(event.kind)).collect()
}

#[test]
fn little_crosses_the_axis() {
    let rows = vec![vec![0.25; 600]; 2];
    assert_eq!(crossing(|epl| drop(split_top_k(split(&rows, epl), 4))), [[2, 4]; 2], "four numbers, four ids");
    let among = crossing(|epl| drop(split_in_top_k(split(&rows, epl), targets(&[3, 599], epl), 4)));
    assert_eq!(among, [[2, 1]; 2], "one number, one count");
}

#[test]
fn what_cannot_be_is_refused() {
    let refusal = |f: &(dyn Fn(&Epl) + Sync)| {
        let found = launch(&config(1, 2, 1), |epl| Ok(epl_comm::catch(|| f(&epl))?));
        found.expect_err("this is wrong").to_string()
    };
    let rows = vec![vec![1.0, 2.0, 3.0, 4.0, 5.0]; 2];
    for (k, message) in [(0, "the 0 largest of 5 logits"), (6, "the 6 largest of 5 logits: k must be")] {
        let found = refusal(&|epl| drop(split_top_k(split(&rows, epl), k)));
        assert!(found.contains(message), "{found}");
        let found = refusal(&|epl| drop(split_in_top_k(split(&rows, epl), targets(&[0, 1], epl), k)));
        assert!(found.contains(message), "{found}");
    }
    let found = refusal(&|epl| drop(split_equal(split(&rows, epl), targets(&[0, 5], epl))));
    assert!(found.contains("target of row 1 is 5, but there are 5 classes"), "{found}");
    let found = refusal(&|epl| drop(split_equal(split(&rows, epl), targets(&[0], epl))));
    assert!(found.contains("2 rows of logits got 1 targets"), "{found}");
    let found = refusal(&|epl| {
        let rows = epl_comm::sliced(Tensor::<2>::ones([4, 3], epl.place().device()), 0, epl.context().tensor());
        drop(split_top_k(rows, 1));
    });
    assert!(found.contains("along dim 1; got dim 0"), "{found}");
}
