//! A Burn dataset and the batcher that makes tensors of its items.

use std::fmt::Display;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::tensor::Device;

use super::sampler::GlobalBatch;
use crate::engine::MicroBatch;
use crate::error::{Error, Result};

/// A Burn [`Dataset`] of items `I` and a [`Batcher`] that makes a `B` of several of them. A cheap clone.
///
/// Both are called on the threads that load data, several at a time where that is set. They must not draw from Burn's
/// generator, which all ranks share: what is random in a sample follows from its index.
pub struct DataSource<I, B> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn Batcher<I, B>>,
}

impl<I, B> Clone for DataSource<I, B> {
    fn clone(&self) -> Self {
        Self { dataset: self.dataset.clone(), batcher: self.batcher.clone() }
    }
}

impl<I, B> DataSource<I, B> {
    /// A source of batches.
    pub fn new(dataset: impl Dataset<I> + 'static, batcher: impl Batcher<I, B> + 'static) -> Self {
        Self { dataset: Arc::new(dataset), batcher: Arc::new(batcher) }
    }

    /// How many samples the dataset has.
    pub fn len(&self) -> usize {
        self.dataset.len()
    }

    /// Whether the dataset has no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a micro-batch of some rows of a replica's share of a global batch; of no row, a stand-in.
    ///
    /// # Errors
    ///
    /// When the dataset cannot read a sample; when it, or the batcher, panics.
    ///
    /// # Panics
    ///
    /// When the batch is empty, or has an index beyond the dataset: a fault of the sampler.
    pub fn micro_batch(
        &self,
        batch: &GlobalBatch,
        rows: &[usize],
        replica: usize,
        device: &Device,
    ) -> Result<MicroBatch<B>> {
        let indices = match rows {
            [] => vec![batch.stand_in(replica)],
            rows => rows.iter().map(|row| batch.indices[*row]).collect(),
        };
        let failed = |what: &str, cause: &dyn Display| {
            Error::invalid(format!("the {what} the samples with indices {indices:?}: {cause}"))
        };
        let items = epl_comm::catch(|| self.dataset.get_many(indices.clone()));
        let items = items.map_err(|panic| failed("dataset failed on", &panic))?;
        let items = items.map_err(|cause| failed("dataset could not read", &cause))?;
        let made = epl_comm::catch(|| self.batcher.batch(items, device));
        let made = made.map_err(|panic| failed("batcher failed on", &panic))?;
        let samples: Vec<u64> = rows.iter().map(|row| batch.first + *row as u64).collect();
        Ok(match rows {
            [] => MicroBatch::stand_in(made, vec![batch.first]),
            _ => MicroBatch::new(made, samples),
        })
    }
}
