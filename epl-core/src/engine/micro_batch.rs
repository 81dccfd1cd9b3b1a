//! What one replica runs forward and backward at a time.

use std::sync::Arc;

/// A batch, with the global sample number of each of its rows.
#[derive(Clone, Debug)]
pub struct MicroBatch<B> {
    /// The batch.
    pub batch: B,
    /// The global sample number of every row: how many samples were drawn before it since the start of the run.
    pub samples: Arc<[u64]>,
    /// Whether it is a stand-in on a replica that has no sample left: it runs, so that this rank takes part in
    /// every collective, and counts for nothing.
    pub empty: bool,
}

impl<B> MicroBatch<B> {
    /// A micro-batch whose rows are the samples `samples`, one a row, in their order.
    ///
    /// What a row of a batch is only the model knows, so that nothing compares the two but a layer that draws or routes by
    /// sample. [`Engine::train_batch`](crate::Engine::train_batch) and the [`Loader`](crate::data::Loader) number rows
    /// themselves. Of a loss that weighs as much as there are rows ([`LossWeights::with_rows`](crate::LossWeights::with_rows)),
    /// these count.
    pub fn new(batch: B, samples: impl Into<Arc<[u64]>>) -> Self {
        Self { batch, samples: samples.into(), empty: false }
    }

    /// A stand-in that counts for nothing.
    pub fn stand_in(batch: B, samples: impl Into<Arc<[u64]>>) -> Self {
        Self { empty: true, ..Self::new(batch, samples) }
    }
}
