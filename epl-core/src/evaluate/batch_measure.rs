//! What a measure of whole batches is, where sums over samples do not do.

use epl_comm::ProcessGroup;

use crate::error::Result;

/// A measure of outputs `O` by batches of a validation set, which are those that one rank would run, one after the other.
///
/// A [`Measure`](super::Measure) is less work, where sums over samples say all: each rank has its own. This one is for what looks
/// at a batch as a whole, or at all rows at once, such as the metrics of other libraries: parts of a batch are brought to one rank.
pub trait BatchMeasure<O> {
    /// What its values are called: the same on every rank.
    fn names(&self) -> Vec<String>;

    /// Takes this rank's part of the batches of a round. All ranks of the part's group do so together, one that has no sample
    /// too, so that it may communicate.
    ///
    /// # Errors
    ///
    /// When the output cannot be measured.
    fn add(&mut self, part: &BatchPart<'_, O>) -> Result<()>;

    /// Ends a pass, on the first rank of the parts' group alone: a value for each name. The next pass begins anew.
    ///
    /// # Errors
    ///
    /// When nothing follows from what was taken.
    fn finish(&mut self) -> Result<Vec<f64>>;
}

/// What a rank has of a round of an evaluation, in which each replica runs one batch.
pub struct BatchPart<'a, O> {
    /// What the forward gave for the rank's rows; for a stand-in, if it has none.
    pub output: &'a O,
    /// How many rows it has: all of the replica's batch, unless devices divide these. 0 of a stand-in.
    pub rows: usize,
    /// Whose batch it is of. That of the first replica is the first of the round; the last replicas may be without one.
    pub replica: usize,
    /// How many replicas there are.
    pub replicas: usize,
    /// The ranks that have the round's rows, in their order.
    pub group: &'a ProcessGroup,
}
