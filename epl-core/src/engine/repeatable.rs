//! A segment's forward that does the same when it is run again, also where layers of Burn draw or keep statistics.
//!
//! ```text
//! draws         generator seeded for (run, step, segment, micro-batch, rows of this rank), held meanwhile
//! statistics    move when a forward is run first; of one that is run again, or of a stand-in, they are put back
//! ```
//!
//! Which segments draw is known by Burn's layers, and otherwise found in a segment's first forward of training, which runs as
//! if it did: so draws of a model's own repeat, too, if its first micro-batch makes some. A segment that draws nothing pays
//! nothing behind that. What a rank draws is that of the rank's rows, so the ranks that run the same
//! rows, such as the slices of a layer, draw the same.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::rank::Engine;
use crate::model::generator::{Seeds, seeded, watched};
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
        self.found_to_draw(part, micro_batch, f).0
    }

    /// [`repeatable`](Self::repeatable), in training: behind it is known whether the part draws.
    pub(super) fn first_repeatable<T>(&self, part: ForwardPart, micro_batch: usize, f: impl FnOnce() -> T) -> T {
        let (value, draws) = self.found_to_draw(part, micro_batch, f);
        self.draws.found(self.index(part), draws);
        value
    }

    fn index(&self, part: ForwardPart) -> usize {
        match part {
            ForwardPart::Segment(segment) => segment,
            ForwardPart::Loss => self.plan.segments.len(),
        }
    }

    fn found_to_draw<T>(&self, part: ForwardPart, micro_batch: usize, f: impl FnOnce() -> T) -> (T, bool) {
        let (model, plan, context) = (self.model(), &self.plan, &self.context);
        let segment = match part {
            ForwardPart::Segment(segment) => segment,
            ForwardPart::Loss => plan.segments.len() - 1,
        };
        let uses = |number: &usize| plan.records()[*number].segments.contains(&segment);
        let numbers: Vec<usize> = plan.statistics().filter(uses).collect();
        let is_kept = !numbers.is_empty() && (context.is_replay() || context.is_stand_in());
        let before = is_kept.then(|| RunningStatistics::of(model, plan.records(), &numbers));
        let draws = self.draws.known(self.index(part));
        let seeds = || self.seeds(part, segment, micro_batch);
        let ran = catch_unwind(AssertUnwindSafe(|| match draws {
            Some(true) => (seeded(&self.device, seeds(), f), true),
            Some(false) => (f(), false),
            None => watched(&self.device, seeds(), f),
        }));
        if let Some(before) = before {
            before.put_into(model, plan.records());
        }
        ran.unwrap_or_else(|payload| resume_unwind(payload))
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
