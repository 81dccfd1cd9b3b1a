//! What the engine asks of a model: a chain of segments.

use burn::module::Module;

use crate::carry::Carry;
use crate::loss::{Loss, Weights};

/// A model as a chain of segments, each the smallest run of layers that is scheduled and reduced as one.
pub trait Segmented: Module {
    /// What one forward reads.
    type Batch: Send;
    /// What crosses a boundary between segments.
    type Carry: Carry;

    /// How many segments the model has, at least one.
    fn segments(&self) -> usize;

    /// What a segment is called: in the plan, a profile, and by who names what is kept. Its number, if the model does not
    /// say.
    fn segment_name(&self, index: usize) -> String {
        index.to_string()
    }

    /// The segments that use the parameter at `path`; several for a tied weight.
    fn segments_of(&self, path: &str) -> Vec<usize>;

    /// Runs one segment. The first one gets no carry.
    fn forward_segment(&self, index: usize, carry: Option<Self::Carry>, batch: &Self::Batch) -> Self::Carry;

    /// Runs all segments, one after the other, on a rank that has the whole model.
    fn forward_all(&self, batch: &Self::Batch) -> Self::Carry {
        let first = self.forward_segment(0, None, batch);
        (1..self.segments()).fold(first, |carry, index| self.forward_segment(index, Some(carry), batch))
    }

    /// The weights of the loss terms, from the batch alone.
    fn weights(&self, batch: &Self::Batch) -> Weights;

    /// The loss, from what the last segment returned.
    fn loss(&self, carry: Self::Carry, batch: &Self::Batch) -> Loss;
}
