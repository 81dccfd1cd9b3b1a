//! The proof that lists of actions, whoever wrote them, run to their end.
//!
//! A stage does its actions in their order; an action begins when what it waits for has ended
//! ([`Sizes::awaited`]); a send never blocks. Under these rules the order in which stages happen to
//! run cannot matter: whatever can run stays able to. So letting every stage go on as far as it
//! can, again and again, ends with all lists done, or with a circle.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::action::{Action, ActionKind};
use super::circle::{Circle, Wait};
use super::error::{Result, ScheduleError};
use super::sizes::Sizes;

/// What every stage does, proved to end.
///
/// Printed, it is the text that [`parse`](super::parse) reads: a start for a schedule of one's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    sizes: Sizes,
    lists: Vec<Vec<Action>>,
    /// (stage, index in its list) of all actions; each comes after the one that it waits for.
    order: Vec<(usize, usize)>,
}

impl Verified {
    /// The pipeline's sizes.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// What a stage does, in its order.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    pub fn actions(&self, stage: usize) -> &[Action] {
        &self.lists[stage]
    }

    /// The most activations that a stage keeps at once: micro-batches of one chunk whose forward has begun and whose
    /// backward has not ended.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    pub fn peak_in_flight(&self, stage: usize) -> usize {
        let mut kept = 0;
        let after_each = self.lists[stage].iter().map(|action| {
            match action.kind {
                ActionKind::Forward => kept += 1,
                ActionKind::Backward => kept -= 1,
            }
            kept
        });
        after_each.max().unwrap_or(0)
    }

    /// All actions in an order that can be done one after the other, as (stage, index in its list).
    pub fn order(&self) -> &[(usize, usize)] {
        &self.order
    }
}

/// One line a stage.
impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (stage, list) in self.lists.iter().enumerate() {
            let names: Vec<String> = list.iter().map(Action::to_string).collect();
            let newline = if stage == 0 { "" } else { "\n" };
            write!(f, "{newline}{}", names.join(" "))?;
        }
        Ok(())
    }
}

/// Proves that these lists, one a stage, are a schedule: every action once, on its stage, and no stage waits for ever.
///
/// # Errors
///
/// A size of zero, lists that are not one a stage, an action that does not exist, comes twice or
/// is missing, a backward before its forward, stages that wait in a circle.
pub fn verify(lists: Vec<Vec<Action>>, stages: usize, micro_batches: usize, chunks: usize) -> Result<Verified> {
    let sizes = Sizes::new(stages, micro_batches, chunks)?;
    if lists.len() != stages {
        return Err(ScheduleError::Stages { lists: lists.len(), stages });
    }
    for (stage, list) in lists.iter().enumerate() {
        each_once(stage, list, sizes)?;
    }
    let order = run(&lists, sizes)?;
    Ok(Verified { sizes, lists, order })
}

fn each_once(stage: usize, list: &[Action], sizes: Sizes) -> Result<()> {
    let mut places = HashMap::new();
    for (place, action) in (1..).zip(list.iter().copied()) {
        exists(stage, place, action, sizes)?;
        if let Some(first) = places.insert(action, place) {
            return Err(ScheduleError::Twice { stage, action, first, second: place });
        }
    }
    // Ends at the first that is missing, so its length is bounded by the list's and not by the sizes.
    for micro_batch in 0..sizes.micro_batches() {
        for chunk in 0..sizes.chunks() {
            let place = |action| {
                let missing = ScheduleError::Missing { stage, action, given: list.len(), needed: sizes.actions() };
                places.get(&action).copied().ok_or(missing)
            };
            let forward = place(Action::forward(micro_batch, chunk))?;
            let action = Action::backward(micro_batch, chunk);
            let place = place(action)?;
            if place < forward {
                return Err(ScheduleError::BackwardFirst { stage, action, place, forward });
            }
        }
    }
    Ok(())
}

fn exists(stage: usize, place: usize, action: Action, sizes: Sizes) -> Result<()> {
    let Action { micro_batch, chunk, .. } = action;
    let checks = [("micro-batch", micro_batch, sizes.micro_batches()), ("chunk", chunk, sizes.chunks())];
    match checks.into_iter().find(|(_, number, size)| number >= size) {
        Some((what, number, size)) => Err(ScheduleError::NoSuch { stage, place, action, what, number, size }),
        None => Ok(()),
    }
}

/// Lets every stage go on as far as it can until all are done, and returns the order.
fn run(lists: &[Vec<Action>], sizes: Sizes) -> Result<Vec<(usize, usize)>> {
    let mut next = vec![0; lists.len()];
    let mut ended = HashSet::new();
    let mut order = Vec::with_capacity(sizes.stages() * sizes.actions());
    while order.len() < sizes.stages() * sizes.actions() {
        let before = order.len();
        for (stage, list) in lists.iter().enumerate() {
            while let Some(action) = list.get(next[stage]).copied()
                && sizes.awaited(stage, action).is_none_or(|awaited| ended.contains(&awaited))
            {
                ended.insert((stage, action));
                order.push((stage, next[stage]));
                next[stage] += 1;
            }
        }
        if order.len() == before {
            return Err(ScheduleError::Deadlock(circle(lists, &next, sizes)));
        }
    }
    Ok(order)
}

/// The circle behind the fact that no stage can go on.
fn circle(lists: &[Vec<Action>], next: &[usize], sizes: Sizes) -> Circle {
    let wait = |stage: usize| {
        let action = *lists[stage].get(next[stage])?;
        let (from, awaited) = sizes.awaited(stage, action)?;
        let awaited_place = 1 + lists[from].iter().position(|action| *action == awaited)?;
        Some(Wait { stage, action, place: next[stage] + 1, awaited, from, awaited_place })
    };
    let standing = (0..lists.len()).find(|stage| wait(*stage).is_some());
    let because = "a stage that is not done waits for one that is not done";
    Circle::from(standing.expect(because), |stage| wait(stage).expect(because))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One text a stage.
    fn lists(texts: &[&str]) -> Vec<Vec<Action>> {
        texts.iter().map(|text| text.split(' ').map(|word| word.parse().unwrap()).collect()).collect()
    }

    #[test]
    fn a_schedule_that_ends_is_kept_as_it_is() {
        let given = lists(&["F0 F1 B0 B1", "F0 B0 F1 B1"]);
        let verified = verify(given.clone(), 2, 2, 1).unwrap();
        assert_eq!([verified.actions(0), verified.actions(1)], [&given[0][..], &given[1][..]]);
        assert_eq!([verified.peak_in_flight(0), verified.peak_in_flight(1)], [2, 1]);
        assert_eq!(verified.to_string(), "F0 F1 B0 B1\nF0 B0 F1 B1");
        assert_eq!(verified.order(), [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (0, 2), (0, 3)]);
    }

    #[test]
    fn micro_batches_may_overtake_one_another() {
        assert!(verify(lists(&["F1 F0 B1 B0", "F1 F0 B0 B1"]), 2, 2, 1).is_ok());
    }

    #[test]
    fn what_is_wrong_is_said_with_the_stage_and_the_action() {
        for (texts, chunks, message) in [
            (
                &["F0 F1 B0 B1"][..],
                1,
                "the number of lists of actions (in a file: of lines) is 1, that of stages 2; give one list a stage",
            ),
            (
                &["F0 F1 B0 B1", "F0 B0 F2 B1"],
                1,
                "stage 1, place 3: F2 is of micro-batch 2, but their number is 2, counted from 0; \
                 remove it, or raise their number to 3",
            ),
            (
                &["F0 F1.1 B0 B1", "F0 B0 F1 B1"],
                1,
                "stage 0, place 2: F1.1 is of chunk 1, but their number is 1, counted from 0; \
                 remove it, or raise their number to 2",
            ),
            (&["F0 F1 B0 B1", "F0 F1 B0 F1 B1"], 1, "stage 1 does F1 twice, at places 2 and 4; remove one"),
            (&["F0 F1 B0", "F0 F1 B0 B1"], 1, "stage 0 never does B1: its list has 3 of 4 actions; add it"),
            (&["F0 F1 B0 B1", "F0 F1 B0 B1"], 2, "stage 0 never does F0.1: its list has 4 of 8 actions; add it"),
            (
                &["F0 F1 B0 B1", "F0 B1 B0 F1"],
                1,
                "stage 1 does B1 at place 2, before its forward at place 4, whose activations it needs; \
                 put the forward first",
            ),
        ] {
            assert_eq!(verify(lists(texts), 2, 2, chunks).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn a_circle_is_printed() {
        let deadlock = verify(lists(&["F0 B0 F1 B1", "F0 F1 B0 B1"]), 2, 2, 1).unwrap_err();
        assert_eq!(
            deadlock.to_string(),
            "the schedule never ends, since stages wait in a circle: \
             stage 0 stands at B0 (place 2), which needs B0 of stage 1 (place 3); \
             stage 1 stands at F1 (place 2), which needs F1 of stage 0 (place 3); \
             where a stage has what is needed after what it stands at, put it before"
        );
        let alone = verify(lists(&["F0.1 F0 B0.1 B0"]), 1, 1, 2).unwrap_err();
        assert_eq!(
            alone.to_string(),
            "the schedule never ends, since stages wait in a circle: \
             stage 0 stands at F0.1 (place 1), which needs F0 of stage 0 (place 2); \
             where a stage has what is needed after what it stands at, put it before"
        );
    }

    #[test]
    fn a_stage_that_only_waits_for_the_circle_is_not_in_it() {
        let texts = ["F0 F1 B0 B1", "F0 B0 F1 B1", "F0 F1 B0 B1"];
        let Err(ScheduleError::Deadlock(circle)) = verify(lists(&texts), 3, 2, 1) else { panic!("it has a circle") };
        assert_eq!(circle.waits().iter().map(|wait| wait.stage).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn sizes_that_no_list_can_fill_end_at_the_first_action_that_is_missing() {
        let error = verify(lists(&["F0 B0"]), 1, 1 << 40, 1 << 20).unwrap_err();
        assert!(matches!(error, ScheduleError::Missing { action, .. } if action == Action::forward(0, 1)), "{error}");
    }
}
