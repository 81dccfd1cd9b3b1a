//! What holds for every size: schedules end, keep what they promise, and are idle as long as the formulas say.

use epl_core::schedule::{Cost, Schedule, Timeline, Verified, simulate};
use proptest::prelude::*;

use crate::pipeline::mutations::any_schedule;
use crate::pipeline::oracle::{needs, peak};

const STAGES: usize = 16;
const MICRO_BATCHES: usize = 64;

/// Every size up to 16 stages and 64 micro-batches.
fn for_all_sizes(schedule: Schedule, check: impl Fn(usize, usize, &Verified)) {
    for stages in 1..=STAGES {
        for micro_batches in 1..=MICRO_BATCHES {
            let verified =
                schedule.verified(stages, micro_batches).unwrap_or_else(|error| panic!("{schedule}: {error}"));
            for stage in 0..stages {
                let peak = schedule.peak_in_flight(stage, stages, micro_batches);
                assert_eq!(
                    peak,
                    verified.peak_in_flight(stage),
                    "{schedule}, stage {stage} of {stages}, {micro_batches}"
                );
            }
            check(stages, micro_batches, &verified);
        }
    }
}

fn even(verified: &Verified, forward: u64, backward: u64) -> Timeline {
    simulate(verified, &vec![Cost { forward, backward }; verified.sizes().parts()]).unwrap()
}

#[track_caller]
fn assert_makespan(verified: &Verified, rounds: usize) {
    for (forward, backward) in [(1, 1), (1, 2), (3, 2)] {
        let makespan = even(verified, forward, backward).makespan();
        assert_eq!(makespan, rounds as u64 * (forward + backward), "{:?}", verified.sizes());
    }
}

#[track_caller]
fn assert_bubble(verified: &Verified, idle: usize, all: usize) {
    let bubble = even(verified, 1, 2).bubble();
    assert!((bubble - idle as f64 / all as f64).abs() < 1e-12, "{bubble} for {:?}", verified.sizes());
}

#[test]
fn prefer_forward_keeps_everything() {
    for_all_sizes(Schedule::PreferForward, |stages, micro_batches, verified| {
        assert!((0..stages).all(|stage| verified.peak_in_flight(stage) == micro_batches));
        assert_makespan(verified, micro_batches + stages - 1);
    });
}

#[test]
fn prefer_backward_keeps_one_micro_batch_a_later_stage() {
    for_all_sizes(Schedule::PreferBackward, |stages, micro_batches, verified| {
        for stage in 0..stages {
            assert_eq!(verified.peak_in_flight(stage), micro_batches.min(stages - stage));
        }
        assert_makespan(verified, micro_batches + stages - 1);
        assert_bubble(verified, stages - 1, micro_batches + stages - 1);
    });
}

#[test]
fn prefer_backward_optimizer_keeps_one_more_but_on_the_last_stage() {
    for_all_sizes(Schedule::PreferBackwardOptimizer, |stages, micro_batches, verified| {
        for stage in 0..stages {
            let most = if stage + 1 == stages { 1 } else { stages - stage + 1 };
            assert_eq!(verified.peak_in_flight(stage), micro_batches.min(most));
        }
        assert_makespan(verified, micro_batches + stages - 1);
    });
}

#[test]
fn interleaving_divides_the_bubble_by_the_chunks() {
    for chunks in 2..=4 {
        for_all_sizes(Schedule::Interleaved { chunks }, |stages, micro_batches, verified| {
            let (long, short) = (micro_batches.max(stages), micro_batches.min(stages));
            assert_makespan(verified, chunks * long + short - 1);
            if micro_batches >= stages {
                assert_bubble(verified, stages - 1, chunks * micro_batches + stages - 1);
            }
        });
    }
}

#[test]
fn interleaving_keeps_what_goes_ahead_and_one_more() {
    for chunks in 2..=4 {
        for_all_sizes(Schedule::Interleaved { chunks }, |stages, micro_batches, verified| {
            // The largest group of micro-batches; p where p divides m, as in the paper.
            let group = micro_batches.div_ceil((micro_batches / stages).max(1));
            for stage in 0..stages {
                let ahead = 2 * (stages - 1 - stage) + (chunks - 1) * group;
                assert_eq!(verified.peak_in_flight(stage), (ahead + 1).min(chunks * micro_batches));
            }
        });
    }
}

#[test]
fn sizes_of_zero_are_refused() {
    for (schedule, stages, micro_batches, what) in [
        (Schedule::PreferBackward, 0, 1, "stages"),
        (Schedule::PreferBackward, 1, 0, "micro-batches"),
        (Schedule::Interleaved { chunks: 0 }, 1, 1, "chunks a stage"),
    ] {
        let error = schedule.verified(stages, micro_batches).unwrap_err();
        assert_eq!(error.to_string(), format!("the number of {what} is 0; it must be at least 1"));
    }
}

/// A schedule and a cost for each of its parts, some of them nothing.
fn any_costs() -> impl Strategy<Value = (Verified, Vec<Cost>)> {
    (any_schedule(4), 1..=STAGES, 1..=MICRO_BATCHES).prop_flat_map(|(schedule, stages, micro_batches)| {
        let verified = schedule.verified(stages, micro_batches).unwrap();
        let cost = (0..9_u64, 0..9_u64).prop_map(|(forward, backward)| Cost { forward, backward });
        let costs = proptest::collection::vec(cost, verified.sizes().parts());
        (Just(verified), costs)
    })
}

proptest! {
    #[test]
    fn an_action_begins_as_soon_as_it_can((verified, costs) in any_costs()) {
        let timeline = simulate(&verified, &costs).unwrap();
        let sizes = verified.sizes();
        for stage in 0..sizes.stages() {
            let mut free = 0;
            for (span, action) in timeline.spans(stage).iter().zip(verified.actions(stage)) {
                prop_assert_eq!(span.action, *action);
                let end_of = |(stage, action)| {
                    timeline.spans(stage).iter().find(|span| span.action == action).map(|span| span.end).unwrap()
                };
                let ready = needs(stage, *action, sizes.stages(), sizes.chunks()).map_or(0, end_of);
                prop_assert_eq!(span.start, ready.max(free));
                free = span.end;
            }
            prop_assert_eq!(timeline.spans(stage).len(), sizes.actions());
        }
    }

    #[test]
    fn what_is_kept_is_counted_as_by_the_oracle((verified, costs) in any_costs()) {
        for stage in 0..verified.sizes().stages() {
            prop_assert_eq!(verified.peak_in_flight(stage), peak(verified.actions(stage)));
        }
        let drawn = simulate(&verified, &costs).unwrap().to_string();
        let widest = drawn.lines().take(verified.sizes().stages()).map(|line| line.chars().count()).max();
        prop_assert!(widest.unwrap() <= 100, "{}", drawn);
    }
}
