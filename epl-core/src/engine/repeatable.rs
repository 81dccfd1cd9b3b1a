//! A segment's forward that does the same when it is run again, also where layers of Burn draw or keep statistics.
//!
//! ```text
//! draws         generator seeded for (run, step, segment, micro-batch, rows of this rank), held meanwhile
//! statistics    move when a forward is run first; of one that is run again, or of a stand-in, they are put back
//! ```
//!
//! Which segments draw is known by Burn's layers, and otherwise found in a segment's first forward of training, which runs as
//! if it did: so draws of a model's own repeat, too, if its first micro-batch makes some. A segment that draws nothing pays
//! nothing behind that. What a rank draws is that of the rank's rows, so the ranks that run the same rows, such as the slices of
//! a layer, draw the same.

use super::rank::Engine;
use crate::model::generator::{Seeds, seeded, watched};
use crate::model::segment::Model;
use crate::model::stateful::undoing;
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
        self.with_own_statistics(part, || match self.draws.known(self.index(part)) {
            Some(false) => f(),
            // What is measured is not watched.
            _ => seeded(&self.device, self.seeds(part, micro_batch), f),
        })
    }

    /// [`repeatable`](Self::repeatable), in training: behind it is known whether the part draws.
    pub(super) fn first_repeatable<T>(&self, part: ForwardPart, micro_batch: usize, f: impl FnOnce() -> T) -> T {
        let index = self.index(part);
        if self.draws.known(index).is_some() {
            return self.repeatable(part, micro_batch, f);
        }
        let run = || watched(&self.device, self.seeds(part, micro_batch), f);
        let (value, draws) = self.with_own_statistics(part, run);
        self.draws.found(index, draws);
        value
    }

    fn segment(&self, part: ForwardPart) -> usize {
        match part {
            ForwardPart::Segment(segment) => segment,
            ForwardPart::Loss => self.plan.segments.len() - 1,
        }
    }

    fn index(&self, part: ForwardPart) -> usize {
        match part {
            ForwardPart::Segment(segment) => segment,
            ForwardPart::Loss => self.plan.segments.len(),
        }
    }

    /// Runs a part whose running statistics stay, where it is run again or by a stand-in.
    fn with_own_statistics<T>(&self, part: ForwardPart, f: impl FnOnce() -> T) -> T {
        if !(self.context.is_replay() || self.context.is_stand_in()) {
            return f();
        }
        let (model, records, segment) = (self.model(), self.plan.records(), self.segment(part));
        let numbers: Vec<usize> =
            self.plan.statistics().filter(|number| records[*number].segments.contains(&segment)).collect();
        if numbers.is_empty() {
            return f();
        }
        let before = RunningStatistics::of(model, records, &numbers);
        undoing(f, || before.put_into(model, records))
    }

    fn seeds(&self, part: ForwardPart, micro_batch: usize) -> Seeds {
        let (mesh, rank, segment) = (self.context.mesh(), self.context.world().rank(), self.segment(part));
        let is_loss = matches!(part, ForwardPart::Loss);
        let at = [segment, usize::from(is_loss), micro_batch, mesh.replica(rank), mesh.device(rank).0];
        let mut numbers = vec![self.context.seed(), self.state.steps];
        numbers.extend(at.map(|number| number as u64));
        Seeds { own: stable_hash(&("draws", &*numbers)), after: stable_hash(&("after draws", &*numbers)) }
    }
}
