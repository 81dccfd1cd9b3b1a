//! When every action of a schedule begins and ends, given what each costs.
//!
//! ```text
//!  begin of an action = max(end of the stage's action before it, end of the action that it waits for)
//! ```
//!
//! Sending costs nothing here: a plan compares schedules by it, and says so.

use std::collections::HashMap;

use super::action::{Action, ActionKind};
use super::error::{Result, ScheduleError};
use super::verify::Verified;

/// What one part of the model costs for one micro-batch, in any unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Of its forward.
    pub forward: u64,
    /// Of its backward.
    pub backward: u64,
}

impl Cost {
    /// A forward of 1 and a backward of 2: twice the products of matrices.
    pub const USUAL: Self = Self { forward: 1, backward: 2 };

    fn of(&self, kind: ActionKind) -> u64 {
        match kind {
            ActionKind::Forward => self.forward,
            ActionKind::Backward => self.backward,
        }
    }
}

/// When a stage does an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The action.
    pub action: Action,
    /// Its begin.
    pub start: u64,
    /// Its end.
    pub end: u64,
}

/// When every stage does what.
///
/// Printed, it is a line a stage, a column a slot of time; see [`Timeline::draw`].
///
/// ```
/// use epl_core::schedule::{Cost, Schedule, simulate};
///
/// let timeline = simulate(&Schedule::PreferBackward.verified(2, 2)?, &[Cost::USUAL; 2])?;
/// assert_eq!(timeline.makespan(), 9);
/// assert_eq!(
///     timeline.to_string(),
///     "stage 0  F0F1. . B0--. B1--\n\
///      stage 1  . F0B0--F1B1--. .\n\
///      makespan 9 in slots of 1; idle 33.3 %"
/// );
/// # Ok::<(), epl_core::schedule::ScheduleError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    stages: Vec<Vec<Span>>,
}

impl Timeline {
    /// What a stage does when, in its order.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    pub fn spans(&self, stage: usize) -> &[Span] {
        &self.stages[stage]
    }

    /// Stages.
    pub fn stages(&self) -> usize {
        self.stages.len()
    }

    /// When the last action ends; the first begins at 0.
    pub fn makespan(&self) -> u64 {
        self.stages.iter().flatten().map(|span| span.end).max().unwrap_or(0)
    }

    /// The time that a stage is at work.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    pub fn busy(&self, stage: usize) -> u64 {
        self.stages[stage].iter().map(|span| span.end - span.start).sum()
    }

    /// The fraction of all stages' time that they are idle; 0 where nothing costs anything.
    pub fn bubble(&self) -> f64 {
        let busy: f64 = (0..self.stages()).map(|stage| self.busy(stage) as f64).sum();
        match self.makespan() {
            0 => 0.0,
            makespan => 1.0 - busy / (self.stages() as f64 * makespan as f64),
        }
    }
}

/// When every action of a schedule begins and ends; one cost a part of the model.
///
/// # Errors
///
/// Costs that are not one a part, or whose sum over all micro-batches overflows.
pub fn simulate(schedule: &Verified, costs: &[Cost]) -> Result<Timeline> {
    check(schedule, costs)?;
    let sizes = schedule.sizes();
    let mut stages: Vec<Vec<Span>> = vec![Vec::new(); sizes.stages()];
    let mut ends = HashMap::new();
    for &(stage, index) in schedule.order() {
        let action = schedule.actions(stage)[index];
        let free = stages[stage].last().map_or(0, |span| span.end);
        let ready = sizes.awaited(stage, action).map_or(0, |awaited| ends[&awaited]);
        let start = free.max(ready);
        let end = start + costs[sizes.part(stage, action.chunk)].of(action.kind);
        ends.insert((stage, action), end);
        stages[stage].push(Span { action, start, end });
    }
    Ok(Timeline { stages })
}

fn check(schedule: &Verified, costs: &[Cost]) -> Result<()> {
    let sizes = schedule.sizes();
    if costs.len() != sizes.parts() {
        return Err(ScheduleError::Costs {
            costs: costs.len(),
            parts: sizes.parts(),
            stages: sizes.stages(),
            chunks: sizes.chunks(),
        });
    }
    // No schedule takes longer than all actions one after the other.
    let all: u128 = costs.iter().map(|cost| u128::from(cost.forward) + u128::from(cost.backward)).sum();
    match all.checked_mul(sizes.micro_batches() as u128) {
        Some(all) if u64::try_from(all).is_ok() => Ok(()),
        _ => Err(ScheduleError::CostsOverflow { micro_batches: sizes.micro_batches() }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Schedule;
    use super::*;

    fn verified(schedule: Schedule, stages: usize, micro_batches: usize) -> Verified {
        schedule.verified(stages, micro_batches).unwrap()
    }

    #[test]
    fn an_action_waits_for_its_stage_and_for_its_input() {
        let costs = [Cost { forward: 2, backward: 3 }, Cost { forward: 5, backward: 7 }];
        let timeline = simulate(&verified(Schedule::PreferBackward, 2, 2), &costs).unwrap();
        let times = |stage: usize| timeline.spans(stage).iter().map(|span| (span.start, span.end)).collect::<Vec<_>>();
        assert_eq!(times(0), [(0, 2), (2, 4), (14, 17), (26, 29)]);
        assert_eq!(times(1), [(2, 7), (7, 14), (14, 19), (19, 26)]);
        assert_eq!((timeline.makespan(), timeline.busy(0), timeline.busy(1)), (29, 10, 24));
        assert_eq!(timeline.bubble(), 1.0 - 34.0 / 58.0);
    }

    #[test]
    fn a_chunk_has_the_cost_of_its_own_part() {
        let costs = [1, 10, 100, 1000].map(|forward| Cost { forward, backward: 0 });
        let timeline = simulate(&verified(Schedule::Interleaved { chunks: 2 }, 2, 1), &costs).unwrap();
        assert_eq!((timeline.busy(0), timeline.busy(1), timeline.makespan()), (101, 1010, 1111));
    }

    #[test]
    fn costs_that_do_not_fit_are_refused() {
        let schedule = verified(Schedule::Interleaved { chunks: 2 }, 3, 4);
        assert_eq!(
            simulate(&schedule, &[Cost::USUAL; 3]).unwrap_err().to_string(),
            "3 costs for 6 parts (3 stages × 2 chunks); give one a part"
        );
        assert!(simulate(&schedule, &[Cost { forward: u64::MAX / 24, backward: 0 }; 6]).is_ok());
        assert_eq!(
            simulate(&schedule, &[Cost { forward: u64::MAX / 4, backward: u64::MAX }; 6]).unwrap_err().to_string(),
            "4 times the costs of all parts is more than 18446744073709551615; give them in a larger unit of time"
        );
    }
}
