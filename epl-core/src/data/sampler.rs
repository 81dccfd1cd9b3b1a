//! Which samples a step is made of.

use crate::error::{Error, Result};

/// The samples of one step over all replicas and micro-batches, in one fixed order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalBatch {
    /// The global sample number of the first row: how many samples were drawn before it since the start of the run.
    pub first: u64,
    /// The dataset index of every row. The sample number of row `i` is `first + i`.
    pub indices: Vec<usize>,
    /// Whose rows these are, replica by replica, where not every replica can read every sample; none: they are cut
    /// evenly.
    pub owned: Option<Vec<Owned>>,
}

/// What one replica runs of a global batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Its rows, ascending; perhaps none.
    pub rows: Vec<usize>,
    /// The dataset index of a sample that it can read, to stand in where it has none to run.
    pub stand_in: usize,
}

impl GlobalBatch {
    /// A batch that any replica can read.
    pub fn new(first: u64, indices: Vec<usize>) -> Self {
        Self { first, indices, owned: None }
    }

    /// How many samples have been drawn once this batch is done: the position of the next one.
    pub fn end(&self) -> u64 {
        self.first + self.indices.len() as u64
    }

    /// The dataset index that stands in on a replica without a row.
    ///
    /// # Panics
    ///
    /// When the batch is empty: a fault of the sampler.
    pub fn stand_in(&self, replica: usize) -> usize {
        assert!(!self.indices.is_empty(), "a sampler never draws an empty batch");
        let owned = self.owned.as_ref().and_then(|owned| owned.get(replica));
        owned.map_or(self.indices[0], |owned| owned.stand_in)
    }
}

/// Draws global batches: a pure function of how many samples were drawn before.
///
/// It knows neither ranks nor micro-batches, so no layout can change what a step trains on. A position, and not a
/// step number, is the argument, since batches may differ in size; it is all that a resumed run has to restore.
/// (One that draws from files which are divided over the replicas knows how many of these there are. They change where
/// a batch ends, never the order of the samples.)
pub trait Sampler: Send + Sync {
    /// How many samples the dataset must have; an epoch draws each of them once.
    fn samples(&self) -> usize;

    /// The global batch that follows `position` samples. Never empty. Not asked for at the [`end`](Self::end).
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

    /// The position at which the data ends, and with it the run, on all ranks after the same step; none: it never does.
    fn end(&self) -> Option<u64> {
        None
    }

    /// Whether it draws from files as the options `io.*` divide them.
    fn divides_files(&self) -> bool {
        false
    }
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

    fn end(&self) -> Option<u64> {
        (**self).end()
    }

    fn divides_files(&self) -> bool {
        (**self).divides_files()
    }
}

/// The position after so many epochs of so many samples.
pub(super) fn end_after(epochs: u64, samples: usize) -> Result<u64> {
    match epochs.checked_mul(samples as u64) {
        Some(end) if end > 0 => Ok(end),
        _ => Err(Error::invalid(format!(
            "{epochs} epochs of {samples} samples; there must be at least one sample to draw, and fewer than 2^64"
        ))),
    }
}
