//! Which samples a step is made of.

use crate::error::Result;

/// The samples of one step over all replicas and micro-batches, in one fixed order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalBatch {
    /// The global sample number of the first row: how many samples were drawn before it since the start of the run.
    pub first: u64,
    /// The dataset index of every row. The sample number of row `i` is `first + i`.
    pub indices: Vec<usize>,
}

impl GlobalBatch {
    /// How many samples have been drawn once this batch is done: the position of the next one.
    pub fn end(&self) -> u64 {
        self.first + self.indices.len() as u64
    }
}

/// Draws global batches: a pure function of how many samples were drawn before.
///
/// It knows neither ranks nor micro-batches, so no layout can change what a step trains on. A position, and not a
/// step number, is the argument, since batches may differ in size; it is all that a resumed run has to restore.
pub trait Sampler: Send + Sync {
    /// How many samples the dataset must have; an epoch draws each of them once.
    fn samples(&self) -> usize;

    /// The global batch that follows `position` samples. Never empty.
    ///
    /// # Errors
    ///
    /// When no batch begins at this position, because the run that reached it drew in another way.
    fn batch(&self, position: u64) -> Result<GlobalBatch>;

    /// Names the order in which samples come: data, seed, and what else decides it.
    ///
    /// It is saved with a checkpoint. A run that resumes under another order would see some samples twice in an
    /// epoch and others never, and is refused.
    fn order(&self) -> String;
}

impl<S: Sampler + ?Sized> Sampler for Box<S> {
    fn samples(&self) -> usize {
        (**self).samples()
    }

    fn batch(&self, position: u64) -> Result<GlobalBatch> {
        (**self).batch(position)
    }

    fn order(&self) -> String {
        (**self).order()
    }
}
