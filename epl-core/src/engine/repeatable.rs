//! A segment's forward that does the same when it is run again, also where layers of Burn draw or keep statistics.
//!
//! ```text
//! draws         generator seeded for (run, step, segment, micro-batch, rows of this rank), held meanwhile
//! statistics    move when a forward is run first; of one that is run again, or of a stand-in, they are put back
//! ```
//!
//! A model without such layers pays nothing. What a rank draws is that of the rank's rows, so the ranks that run the same
//! rows, such as the slices of a layer, draw the same.

use super::rank::Engine;
use crate::model::generator::{Seeds, seeded};
use crate::model::segment::Model;
use crate::params::statistics::RunningStatistics;
use crate::stable_hash::stable_hash;

/// What of a micro-batch's forward is run.
#[derive(Clone, Copy, Debug)]
pub(super) enum ForwardPart {
    /// A segment.
    Segment(usize),
    /// The loss, behind the last segment; all of the model, where that is one segment.
    Loss,
}

impl<M: Model> Engine<M> {
    /// Runs a part of the forward of the current pass, which is that of the micro-batch with this number in its step.
    pub(super) fn repeatable<T>(&self, part: ForwardPart, micro_batch: usize, f: impl FnOnce() -> T) -> T {
        let (model, plan, context) = (self.model(), &self.plan, &self.context);
        let segment = match part {
            ForwardPart::Segment(segment) => segment,
            ForwardPart::Loss => plan.segments.len() - 1,
        };
        let uses = |number: &usize| plan.records()[*number].segments.contains(&segment);
        let numbers: Vec<usize> = plan.statistics().filter(uses).collect();
        let is_kept = !numbers.is_empty() && (context.is_replay() || context.is_stand_in());
        let before = is_kept.then(|| RunningStatistics::of(model, plan.records(), &numbers));
        let value = match plan.burn_layers.draws[segment] {
            true => seeded(&self.device, self.seeds(part, segment, micro_batch), f),
            false => f(),
        };
        if let Some(before) = before {
            before.put_into(model, plan.records());
        }
        value
    }

    fn seeds(&self, part: ForwardPart, segment: usize, micro_batch: usize) -> Seeds {
        let (mesh, rank) = (self.context.mesh(), self.context.world().rank());
        let is_loss = matches!(part, ForwardPart::Loss);
        let at = [segment, usize::from(is_loss), micro_batch, mesh.replica(rank), mesh.device(rank).0];
        let mut numbers = vec![self.context.seed(), self.state.steps];
        numbers.extend(at.map(|number| number as u64));
        Seeds { own: stable_hash(&("draws", &*numbers)), after: stable_hash(&("after draws", &*numbers)) }
    }
}
