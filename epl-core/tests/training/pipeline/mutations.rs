//! Schedules with faults: the verifier and the oracle agree on every one.

use epl_core::schedule::{Action, Circle, Schedule, ScheduleError, verify};
use proptest::prelude::*;

use crate::pipeline::oracle::{Lists, is_schedule, needs, peak};

#[derive(Clone, Debug)]
enum Mutation {
    Swap(usize, usize, usize),
    Drop(usize, usize),
    Duplicate(usize, usize, usize),
    Replace(usize, usize, Action),
    Exchange(usize, usize),
    Reverse(usize),
}

impl Mutation {
    fn apply(&self, lists: &mut Lists) {
        let stages = lists.len();
        let place = |list: &[Action], place: usize| place % list.len().max(1);
        match *self {
            Self::Swap(stage, first, second) => {
                let list = &mut lists[stage % stages];
                let (first, second) = (place(list, first), place(list, second));
                list.swap(first, second);
            }
            Self::Drop(stage, at) => {
                let list = &mut lists[stage % stages];
                list.remove(place(list, at));
            }
            Self::Duplicate(stage, from, to) => {
                let list = &mut lists[stage % stages];
                list.insert(place(list, to), list[place(list, from)]);
            }
            Self::Replace(stage, at, action) => {
                let list = &mut lists[stage % stages];
                let at = place(list, at);
                list[at] = action;
            }
            Self::Exchange(one, other) => lists.swap(one % stages, other % stages),
            Self::Reverse(stage) => lists[stage % stages].reverse(),
        }
    }
}

fn any_mutation() -> impl Strategy<Value = Mutation> {
    let place = 0..64_usize;
    let any_action = (any::<bool>(), 0..7_usize, 0..4_usize).prop_map(|(forward, micro_batch, chunk)| match forward {
        true => Action::forward(micro_batch, chunk),
        false => Action::backward(micro_batch, chunk),
    });
    prop_oneof![
        6 => (0..6_usize, place.clone(), place.clone()).prop_map(|(stage, i, j)| Mutation::Swap(stage, i, j)),
        1 => (0..6_usize, place.clone()).prop_map(|(stage, i)| Mutation::Drop(stage, i)),
        1 => (0..6_usize, place.clone(), place.clone()).prop_map(|(stage, i, j)| Mutation::Duplicate(stage, i, j)),
        1 => (0..6_usize, place, any_action).prop_map(|(stage, i, action)| Mutation::Replace(stage, i, action)),
        1 => (0..6_usize, 0..6_usize).prop_map(|(one, other)| Mutation::Exchange(one, other)),
        1 => (0..6_usize).prop_map(Mutation::Reverse),
    ]
}

pub fn any_schedule(chunks: usize) -> impl Strategy<Value = Schedule> {
    prop_oneof![
        Just(Schedule::PreferForward),
        Just(Schedule::PreferBackward),
        Just(Schedule::PreferBackwardOptimizer),
        (1..=chunks).prop_map(|chunks| Schedule::Interleaved { chunks }),
    ]
}

fn grid(schedule: Schedule, stages: usize, micro_batches: usize) -> Lists {
    (0..stages).map(|stage| schedule.actions(stage, stages, micro_batches)).collect()
}

/// Whether the lists are a schedule, on which both must agree.
fn judge(lists: &Lists, micro_batches: usize, chunks: usize) -> bool {
    let verdict = verify(lists.clone(), lists.len(), micro_batches, chunks);
    assert_eq!(verdict.is_ok(), is_schedule(lists, micro_batches, chunks), "{verdict:?} of {lists:?}");
    match &verdict {
        Ok(verified) => {
            for (stage, list) in lists.iter().enumerate() {
                assert_eq!(verified.peak_in_flight(stage), peak(list), "{lists:?}");
            }
        }
        Err(ScheduleError::Deadlock(circle)) => assert_circle(circle, lists, chunks),
        Err(_) => {}
    }
    verdict.is_ok()
}

/// Every wait of the circle is one; no stage is past what is waited for, and one of them is still before it.
fn assert_circle(circle: &Circle, lists: &Lists, chunks: usize) {
    let waits = circle.waits();
    for (wait, next) in waits.iter().zip(waits.iter().cycle().skip(1)) {
        assert_eq!(lists[wait.stage][wait.place - 1], wait.action);
        assert_eq!(needs(wait.stage, wait.action, lists.len(), chunks), Some((wait.from, wait.awaited)));
        assert_eq!(next.stage, wait.from);
        assert_eq!(lists[wait.from][wait.awaited_place - 1], wait.awaited);
        assert!(wait.awaited_place >= next.place, "{circle} of {lists:?}");
    }
    let nexts = waits.iter().cycle().skip(1);
    assert!(waits.iter().zip(nexts).any(|(wait, next)| wait.awaited_place > next.place), "{circle} of {lists:?}");
}

#[test]
fn every_swap_of_two_actions_is_judged_as_by_the_oracle() {
    for schedule in [Schedule::PreferForward, Schedule::PreferBackward, Schedule::Interleaved { chunks: 2 }] {
        let lists = grid(schedule, 3, 4);
        let mut verdicts = [0, 0];
        for (stage, list) in lists.iter().enumerate() {
            for (first, second) in (0..list.len()).flat_map(|first| (0..first).map(move |second| (first, second))) {
                let mut mutated = lists.clone();
                mutated[stage].swap(first, second);
                verdicts[usize::from(judge(&mutated, 4, schedule.chunks()))] += 1;
            }
        }
        assert!(verdicts.iter().all(|count| *count > 0), "{schedule}: refused and accepted {verdicts:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn mutated_schedules_are_judged_as_by_the_oracle(
        schedule in any_schedule(3),
        stages in 1..6_usize,
        micro_batches in 1..6_usize,
        mutations in proptest::collection::vec(any_mutation(), 1..4),
    ) {
        let mut lists = grid(schedule, stages, micro_batches);
        for mutation in &mutations {
            if lists.iter().all(|list| !list.is_empty()) {
                mutation.apply(&mut lists);
            }
        }
        judge(&lists, micro_batches, schedule.chunks());
    }

    #[test]
    fn shuffled_schedules_are_judged_as_by_the_oracle(
        (micro_batches, lists) in (1..4_usize, 1..4_usize).prop_flat_map(|(stages, micro_batches)| {
            let lists = grid(Schedule::PreferForward, stages, micro_batches);
            let shuffled: Vec<_> = lists.into_iter().map(|list| Just(list).prop_shuffle()).collect();
            (Just(micro_batches), shuffled)
        }),
    ) {
        judge(&lists, micro_batches, 1);
    }
}
