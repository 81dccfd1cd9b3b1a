//! The segments of an action, in pieces that go forward and backward by themselves, and what of the model they ask for.

use std::ops::Range;

use crate::plan::Plan;
use crate::schedule::{Action, ActionKind, run_of};

/// A segment, and whether its parameters ask for gradients.
pub(crate) type Look = (usize, bool);

/// The runs `again` that lie in some segments, and the segments between them, one by one.
pub(crate) fn pieces(segments: Range<usize>, again: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut next = segments.start;
    std::iter::from_fn(move || {
        let start = next;
        let run = run_of(again, start).filter(|run| run.start == start);
        next = run.map_or(start + 1, |run| run.end);
        (start < segments.end).then_some(start..next)
    })
}

/// The segments that an action of the plan's rank runs.
pub(crate) fn segments(plan: &Plan, action: &Action) -> Range<usize> {
    plan.stages.parts()[plan.stages.part(plan.stage(), action.chunk)].clone()
}

/// What an action will ask for, in this order, where the runs `again` are run again.
pub(crate) fn looks(plan: &Plan, action: &Action, again: &[Range<usize>]) -> Vec<Look> {
    let segments = segments(plan, action);
    let is_again = |segment: &usize| run_of(again, *segment).is_some();
    match action.kind {
        ActionKind::Forward => segments.map(|segment| (segment, !is_again(&segment))).collect(),
        ActionKind::Backward => {
            let from = |segment: usize| again.partition_point(|run| run.start < segment);
            let runs = again[from(segments.start)..from(segments.end)].iter().rev();
            runs.flat_map(|run| run.clone().map(|segment| (segment, true))).collect()
        }
    }
}
