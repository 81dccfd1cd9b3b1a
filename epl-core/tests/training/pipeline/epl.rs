//! EPL's own three partition functions, beyond its cases (those are in the root's `tests/layouts/reference.rs`).

use std::ops::Range;

use epl_core::schedule::partition::PartitionError;
use epl_core::schedule::partition::epl::{partition_balance, partition_buckets, partition_stages};
use proptest::prelude::*;

#[test]
fn edges_are_those_of_epl() {
    assert_eq!(partition_balance(&[0, 0, 0], 2).unwrap(), [0..3]);
    assert_eq!(partition_balance(&[5], 2).unwrap(), [0..1]);
    assert_eq!(partition_balance(&[], 1).unwrap(), [0..0]);
    assert_eq!(partition_stages(&[], 2).unwrap(), [0..0, 0..0]);
    assert_eq!(partition_buckets(&[], 3, 0), Some(vec![(0, 0)]));
    assert_eq!(partition_buckets(&[4], 3, 0), None);
    // A bucket that holds nothing is joined by a weight of any size.
    assert_eq!(partition_buckets(&[0, 9, 0, 9], 3, 3), Some(vec![(0, 9), (2, 9)]));
}

/// Computed once by EPL's rule in floating point: weights that differ by more than 100 are rounded down to 0..=100.
#[test]
fn large_weights_are_rounded_as_in_epl() {
    let starts = |parts: Vec<Range<usize>>| parts.iter().map(|part| part.start).collect::<Vec<_>>();
    for (weights, stages, balance, even) in [
        ([898, 414, 1483, 1366, 806, 1678, 303, 1860], 3, [0, 4, 7].as_slice(), [0, 4, 7].as_slice()),
        ([1273, 1133, 1113, 101, 1166, 22, 1090, 1968], 4, &[0, 1, 3, 7], &[0, 1, 3, 7]),
        ([1005, 1065, 59, 995, 1415, 501, 302, 1040], 4, &[0, 3, 4, 6], &[0, 2, 4, 5]),
        ([1865, 1059, 259, 93, 1701, 816, 1337, 1803], 4, &[0, 1, 5, 7], &[0, 1, 5, 7]),
    ] {
        assert_eq!(starts(partition_balance(&weights, stages).unwrap()), balance);
        assert_eq!(starts(partition_stages(&weights, stages).unwrap()), even);
    }
}

#[test]
fn what_epl_stumbles_over_is_an_error() {
    let text = |error: PartitionError| error.to_string();
    assert_eq!(text(partition_balance(&[1], 0).unwrap_err()), "num_stages is 0; it must be at least 1");
    assert_eq!(text(partition_stages(&[1], 0).unwrap_err()), "num_stages is 0; it must be at least 1");
    assert_eq!(text(partition_balance(&[], 2).unwrap_err()), "the number of weights is 0; it must be at least 1");
    assert!(text(partition_balance(&[u64::MAX; 3], 2).unwrap_err()).starts_with("3 weights sum to more than 18446744"));
}

/// Whether a bucket size, tried alone as EPL does, gives what a search by halving found.
fn balanced_in_turn(weights: &[u64], stages: usize) -> Vec<usize> {
    let total: u64 = weights.iter().sum();
    let found = (total / stages as u64..total).find_map(|size| partition_buckets(weights, size, stages));
    found.map_or(vec![0], |buckets| buckets.into_iter().map(|(start, _)| start).collect())
}

/// Stage sizes by trying every share from the mean down.
fn staged_in_turn(weights: &[u64], stages: usize) -> Vec<usize> {
    let weights: Vec<u64> = weights.iter().map(|&weight| weight.max(1)).collect();
    let mean = weights.iter().sum::<u64>() / stages as u64;
    let sizes = |share: u64| {
        let (mut sizes, mut held) = (vec![0], 0);
        for weight in &weights {
            if held >= share && sizes.len() < stages {
                sizes.push(0);
                held = 0;
            }
            *sizes.last_mut().expect("a first stage") += 1;
            held += weight;
        }
        sizes
    };
    (1..=mean).rev().map(sizes).find(|sizes| sizes.len() == stages).expect("a share of 1 fills all")
}

proptest! {
    #[test]
    fn halving_finds_what_trying_in_turn_finds(
        weights in prop::collection::vec(prop_oneof![Just(0_u64), 0..100_u64], 1..12),
        stages in 2..7_usize,
    ) {
        let starts: Vec<usize> = partition_balance(&weights, stages).unwrap().iter().map(|part| part.start).collect();
        prop_assert_eq!(starts, balanced_in_turn(&weights, stages));
        if weights.len() > stages {
            let sizes: Vec<usize> = partition_stages(&weights, stages).unwrap().iter().map(Range::len).collect();
            prop_assert_eq!(sizes, staged_in_turn(&weights, stages));
        }
    }
}
