//! Stages of several devices each never change the mathematics: in f64, all errors are at most 1e-10.

use epl::Strategy;
use epl::config::PipelineStrategy::{PreferBackward, PreferBackwardOptimizer, PreferForward};
use epl::config::ZeroLevel::{V0, V1, V2, V3};
use epl::config::{OffloadLevel, ZeroLevel};

use crate::widths::{Case, Tied};

fn assert_parity(case: &Case) {
    crate::widths::assert_parity(case, 1e-10);
}

fn replicate(devices: usize) -> Strategy {
    Strategy::replicate(devices)
}

fn split(devices: usize) -> Strategy {
    Strategy::split(devices)
}

macro_rules! scopes {
    ($($name:ident: $($scope:ident($devices:literal)),* on $ranks:literal, $rows:literal rows in $micro_batches:literal;)*) => {$(
        #[test]
        fn $name() {
            epl_testing::in_f64(|| {
                assert_parity(&Case::new($ranks, &[$($scope($devices)),*], $rows, $micro_batches));
            });
        }
    )*};
}

scopes! {
    two_to_one:                  replicate(2), replicate(1) on 3, 8 rows in 1;
    two_to_one_accumulated:      replicate(2), replicate(1) on 3, 11 rows in 3;
    two_to_one_twice:            replicate(2), replicate(1) on 6, 13 rows in 3;
    one_to_two:                  replicate(1), replicate(2) on 3, 7 rows in 1;
    one_to_two_twice:            replicate(1), replicate(2) on 6, 7 rows in 2;
    two_to_three:                replicate(2), replicate(3) on 5, 11 rows in 2;
    rows_to_slices:              replicate(2), split(2) on 4, 7 rows in 1;
    rows_to_slices_accumulated:  replicate(2), split(2) on 4, 11 rows in 3;
    rows_to_slices_twice:        replicate(2), split(2) on 8, 13 rows in 3;
    four_to_slices:              replicate(4), split(2) on 6, 9 rows in 2;
    slices_to_rows:              split(2), replicate(3) on 5, 8 rows in 2;
    slices_to_more_slices:       split(2), split(3) on 5, 5 rows in 2;
    three_stages:                replicate(2), split(2), replicate(3) on 7, 10 rows in 3;
    two_to_two_to_one:           replicate(2), replicate(2), replicate(1) on 5, 5 rows in 3;
    two_to_two:                  replicate(2), replicate(2) on 4, 7 rows in 1;
    two_to_two_twice:            replicate(2), replicate(2) on 8, 13 rows in 3;
    slices_to_slices:            split(2), split(2) on 4, 5 rows in 2;
    fewer_rows_than_devices:     replicate(4), replicate(1) on 5, 3 rows in 1;
    fewer_rows_than_micro_batches: replicate(1), replicate(2) on 6, 3 rows in 4;
    one_row:                     replicate(3), split(2) on 5, 1 rows in 2;
}

#[test]
fn every_schedule() {
    epl_testing::in_f64(|| {
        for schedule in [PreferForward, PreferBackward, PreferBackwardOptimizer] {
            for (scopes, ranks) in [([replicate(2), replicate(1)], 3), ([replicate(2), split(2)], 4)] {
                assert_parity(&Case { schedule, ..Case::new(ranks, &scopes, 10, 5) });
            }
        }
    });
}

#[test]
fn recomputed() {
    epl_testing::in_f64(|| {
        for (scopes, ranks) in [([replicate(2), replicate(1)], 3), ([split(2), replicate(3)], 5)] {
            for kept in [vec![0], vec![1, 3]] {
                assert_parity(&Case { kept: Some(kept), ..Case::new(ranks, &scopes, 7, 3) });
            }
        }
    });
}

/// Over stages of other widths, also where ranks that run the same rows have the same gradient.
#[test]
fn tied_over_widths() {
    epl_testing::in_f64(|| {
        for (scopes, ranks) in
            [([replicate(2), replicate(1)], 6), ([replicate(2), split(2)], 8), ([replicate(2), replicate(2)], 4)]
        {
            assert_parity(&Case { tied: Some(Tied::Linear), ..Case::new(ranks, &scopes, 11, 3) });
        }
    });
}

/// A replica may have most of the rows, or all of them.
#[test]
fn rows_in_a_proportion() {
    epl_testing::in_f64(|| {
        for weights in [[2, 1], [0, 1]] {
            for (scopes, ranks) in [([replicate(2), replicate(1)], 6), ([replicate(2), split(2)], 8)] {
                assert_parity(&Case { row_weights: Some(weights), ..Case::new(ranks, &scopes, 11, 3) });
            }
        }
    });
}

/// What is sent in 16 bits differs from one rank; its calls are those of the list.
#[test]
fn tied_and_sent_in_16_bits() {
    epl_testing::in_f64(|| {
        let case = Case::new(6, &[replicate(2), replicate(1)], 11, 3);
        crate::widths::assert_listed(&Case { tied: Some(Tied::Linear), fp16: true, ..case });
    });
}

/// Shards of what the replicas of a stage hold, and state away from the device; also of what stages of other widths share.
#[test]
fn in_shards_and_away_from_the_device() {
    epl_testing::in_f64(|| {
        let layouts =
            [([replicate(2), replicate(1)], 6), ([replicate(2), split(2)], 8), ([replicate(2), replicate(2)], 4)];
        let ways = [(V0, OffloadLevel::Off), (V1, OffloadLevel::Off), (V2, OffloadLevel::V0), (V3, OffloadLevel::Off)];
        let ways = ways.into_iter().chain([(ZeroLevel::Off, OffloadLevel::V0), (V3, OffloadLevel::V0)]);
        for ((zero, offload), tied) in ways.flat_map(|way| [(way, None), (way, Some(Tied::Linear))]) {
            for (scopes, ranks) in &layouts {
                assert_parity(&Case { zero, offload, tied, ..Case::new(*ranks, scopes, 11, 3) });
            }
        }
    });
}

/// Its backward is a collective of the devices of a stage, also of those without a row.
#[test]
fn batch_norm_over_the_devices_of_a_stage() {
    epl_testing::in_f64(|| {
        for rows in [7, 2] {
            for (scopes, ranks) in [([replicate(3), replicate(1)], 4), ([replicate(2), split(2)], 4)] {
                assert_parity(&Case { norm: true, ..Case::new(ranks, &scopes, rows, 1) });
            }
        }
    });
}
