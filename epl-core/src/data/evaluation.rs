//! One pass over a dataset, in its own order, with the same number of batches on every rank.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::tensor::Device;

use super::cut::BatchShard;
use super::prefetch::{Prefetch, PrefetchConfig};
use super::sampler::{GlobalBatch, Owned};
use super::source::{DataSource, SampleBatcher};
use crate::engine::MicroBatch;
use crate::error::{Error, Result};

/// What a run is evaluated on. A cheap clone.
pub struct ValidData<I, B> {
    source: DataSource<I, B>,
    batch: usize,
    ahead: PrefetchConfig,
}

impl<I, B> Clone for ValidData<I, B> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone(), batch: self.batch, ahead: self.ahead }
    }
}

impl<I, B> ValidData<I, B> {
    /// A dataset that is evaluated `batch` samples at a time on every replica.
    ///
    /// # Errors
    ///
    /// When the dataset is empty or the batch has no sample.
    pub fn new(
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, B> + 'static,
        batch: usize,
    ) -> Result<Self> {
        Self::of(DataSource::new(dataset, batcher), batch)
    }

    /// [`new`](Self::new), with a batcher that knows the samples' numbers: here their indices.
    ///
    /// # Errors
    ///
    /// As there, and when it makes rows of partners: which these are would depend on the layout.
    pub fn of_samples(
        dataset: impl Dataset<I> + 'static,
        batcher: impl SampleBatcher<I, B> + 'static,
        batch: usize,
    ) -> Result<Self> {
        Self::of(DataSource::of_samples(dataset, batcher), batch)
    }

    fn of(source: DataSource<I, B>, batch: usize) -> Result<Self> {
        if source.is_empty() || batch == 0 {
            return Err(Error::invalid(format!(
                "evaluation of {} samples, {batch} at a time; both numbers must be at least 1",
                source.len()
            )));
        }
        if source.partner().is_some() {
            return Err(Error::invalid(
                "an evaluation of rows that are mixed with others would depend on the layout; give a batcher that mixes none",
            ));
        }
        Ok(Self { source, batch, ahead: PrefetchConfig::default() })
    }

    /// Loads so many batches ahead, on so many threads.
    #[must_use]
    pub fn with_ahead(mut self, ahead: PrefetchConfig) -> Self {
        self.ahead = ahead;
        self
    }
}

/// How the samples of a round are divided over the replicas, where there are fewer than a batch for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Division {
    /// As evenly as possible.
    Even,
    /// In batches that one rank would run: a whole one for each of the first replicas, then what is left.
    Whole,
}

/// Loads one replica's batches of a dataset, once through, ahead of the evaluation.
///
/// A round takes `replicas × batch` samples; the last takes what is left, divided as evenly as possible. A replica
/// without a sample in it gets a stand-in, so that all ranks run the same number of batches.
#[derive(Debug)]
pub struct EvaluationLoader<B> {
    batches: Prefetch<MicroBatch<B>>,
    rounds: usize,
}

impl<B: Send + 'static> EvaluationLoader<B> {
    /// Starts loading.
    ///
    /// # Errors
    ///
    /// When no thread can be had.
    pub fn start<I: 'static>(data: &ValidData<I, B>, share: BatchShard, device: &Device) -> Result<Self> {
        Self::divided(data, Division::Even, share, device)
    }

    /// [`start`](Self::start), with the last round divided so.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn divided<I: 'static>(
        data: &ValidData<I, B>,
        division: Division,
        share: BatchShard,
        device: &Device,
    ) -> Result<Self> {
        let (data, device) = (data.clone(), device.clone());
        let share = BatchShard { micro_batches: 1, ..share.even() };
        let total = data.source.len();
        let round = share.replicas * data.batch;
        let mut starts = (0..total).step_by(round);
        let rounds = starts.len();
        let batch = data.batch;
        let draw = move || {
            let start = starts.next()?;
            let indices: Vec<usize> = (start..total.min(start + round)).collect();
            let whole = |replica: usize| {
                let rows = replica * batch..indices.len().min((replica + 1) * batch);
                Owned { rows: rows.collect(), stand_in: start }
            };
            let owned = (division == Division::Whole).then(|| (0..share.replicas).map(whole).collect());
            Some(Ok(GlobalBatch { owned, ..GlobalBatch::new(start as u64, indices) }))
        };
        let ahead = data.ahead;
        let make = move |batch: GlobalBatch| {
            let rows = share.rows_of(&batch)?.remove(0);
            data.source.micro_batch(&batch, &rows, share.replica, &device)
        };
        Ok(Self { batches: Prefetch::start(ahead, draw, make)?, rounds })
    }

    /// How many batches every rank runs.
    pub fn rounds(&self) -> usize {
        self.rounds
    }
}

impl<B: Send + 'static> Iterator for EvaluationLoader<B> {
    type Item = Result<MicroBatch<B>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.next()
    }
}
