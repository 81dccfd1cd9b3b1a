//! Mixture of experts: no layout changes the mathematics, in f64 to 1e-10.

use epl_modules::moe::Capacity;

use crate::moe::case::{Case, cases};
use crate::moe::layout::{Layout, run};
use crate::moe::{assert_close, reference};

const LIMIT: f64 = 1e-10;

fn assert_layout(layout: Layout) {
    for case in cases() {
        let what = format!("{} under {layout:?}", case.name);
        assert_close(&what, &run(&case, layout), &run(&case, (1, 1, 1)), LIMIT);
    }
}

#[test]
fn one_rank_equals_the_dense_reference() {
    epl_testing::in_f64(|| {
        for case in cases() {
            assert_close(case.name, &run(&case, (1, 1, 1)), &reference::compute(&case), LIMIT);
        }
    });
}

/// Each expert on the rows that come, or on as much room as all of them could need.
#[test]
fn without_padding_it_is_what_it_is_with_room_for_all() {
    epl_testing::in_f64(|| {
        let mut compared = 0;
        for case in cases().into_iter().filter(|case| case.config.capacity == Capacity::Unlimited) {
            let roomy = Case { on_device: true, ..case.clone() };
            for layout in [(1, 1, 1), (2, 1, 2), (1, 2, 1)] {
                assert_close(
                    &format!("{} under {layout:?}", case.name),
                    &run(&case, layout),
                    &run(&roomy, layout),
                    LIMIT,
                );
            }
            compared += 1;
        }
        assert!(compared >= 5, "{compared}");
    });
}

#[test]
fn the_cases_are_what_they_say() {
    epl_testing::in_f64(|| {
        for case in cases() {
            let outcome = run(&case, (1, 1, 1));
            let counts: Vec<f64> = outcome["moe.tokens_per_expert"].iter::<f64>().collect();
            let dropped = outcome["moe.dropped_tokens"].iter::<f64>().sum::<f64>();
            assert_eq!(
                counts.contains(&0.0),
                ["an expert without tokens", "all tokens to one expert"].contains(&case.name),
                "{}: {counts:?}",
                case.name
            );
            if case.name.contains("place") || case.name == "much padding" {
                assert!(dropped > 0.0, "{}: nothing dropped", case.name);
            }
            if case.name.contains("nothing dropped") {
                assert_eq!(dropped, 0.0, "{}", case.name);
            }
        }
    });
}

#[test]
fn data_2() {
    epl_testing::in_f64(|| {
        assert_layout((2, 1, 1));
    });
}

#[test]
fn data_4() {
    epl_testing::in_f64(|| {
        assert_layout((4, 1, 1));
    });
}

#[test]
fn data_2_expert_2() {
    epl_testing::in_f64(|| {
        assert_layout((2, 1, 2));
    });
}

#[test]
fn data_4_expert_2() {
    epl_testing::in_f64(|| {
        assert_layout((4, 1, 2));
    });
}

#[test]
fn data_4_expert_4() {
    epl_testing::in_f64(|| {
        assert_layout((4, 1, 4));
    });
}

#[test]
fn tensor_2() {
    epl_testing::in_f64(|| {
        assert_layout((1, 2, 1));
    });
}

#[test]
fn data_2_tensor_2_expert_2() {
    epl_testing::in_f64(|| {
        assert_layout((2, 2, 2));
    });
}

#[test]
fn jitter_does_not_depend_on_the_layout() {
    epl_testing::in_f64(|| {
        for case in cases() {
            let plain = run(&case, (1, 1, 1));
            let case = Case { config: case.config.clone().with_jitter(0.2), ..case };
            let whole = run(&case, (1, 1, 1));
            assert_ne!(plain["z"], whole["z"], "{}: jitter does something", case.name);
            assert_close(case.name, &run(&case, (2, 1, 2)), &whole, LIMIT);
            assert_close(case.name, &run(&case, (1, 2, 1)), &whole, LIMIT);
        }
    });
}

#[test]
fn dropout_does_not_depend_on_the_layout() {
    epl_testing::in_f64(|| {
        for case in cases() {
            let plain = run(&case, (1, 1, 1));
            let case = Case { config: case.config.clone().with_dropout(0.3), ..case };
            let whole = run(&case, (1, 1, 1));
            assert_ne!(plain["hidden"], whole["hidden"], "{}: dropout does something", case.name);
            for layout in [(2, 1, 2), (4, 1, 2), (1, 2, 1), (2, 2, 2)] {
                assert_close(&format!("{} under {layout:?}", case.name), &run(&case, layout), &whole, LIMIT);
            }
        }
    });
}
