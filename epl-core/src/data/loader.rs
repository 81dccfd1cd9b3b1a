//! The steps of a training run, each as the micro-batches of one replica.

use std::sync::Arc;
use std::time::Duration;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::tensor::Device;

use super::cut::BatchShard;
use super::prefetch::{Prefetch, PrefetchConfig};
use super::sampler::{GlobalBatch, Sampler};
use super::source::{DataSource, SampleBatcher};
use crate::engine::MicroBatch;
use crate::error::{Error, Result};

/// What a run trains on: a dataset, a batcher, and a sampler that draws from it. A cheap clone.
///
/// ```
/// use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
/// use burn::tensor::{Device, Tensor};
/// use epl_core::data::{BatchShard, Loader, ShuffledSampler, TrainData};
///
/// #[derive(Clone)]
/// struct Column;
///
/// impl Batcher<f32, Tensor<1>> for Column {
///     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<1> {
///         Tensor::from_floats(items.as_slice(), device)
///     }
/// }
///
/// let numbers: Vec<f32> = (0..100).map(|number| number as f32).collect();
/// let data = TrainData::new(InMemDataset::new(numbers), Column, ShuffledSampler::new(100, 8, 7)?)?;
/// // A trainer takes it as it is. In a loop of one's own: the steps of one of two replicas, in two micro-batches.
/// let mut loader = Loader::start(&data, BatchShard::new(0, 2, 2)?, &Device::flex(), 0)?;
/// let step = loader.next_step()?;
/// assert_eq!(step.micro_batches.iter().map(|batch| batch.samples.len()).collect::<Vec<_>>(), [2, 2]);
/// # Ok::<_, epl_core::Error>(())
/// ```
pub struct TrainData<I, B> {
    source: DataSource<I, B>,
    sampler: Arc<dyn Sampler>,
}

impl<I, B> Clone for TrainData<I, B> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone(), sampler: self.sampler.clone() }
    }
}

impl<I, B> TrainData<I, B> {
    /// Joins the three.
    ///
    /// # Errors
    ///
    /// When the sampler draws from another number of samples than the dataset has.
    pub fn new(
        dataset: impl Dataset<I> + 'static,
        batcher: impl Batcher<I, B> + 'static,
        sampler: impl Sampler + 'static,
    ) -> Result<Self> {
        Self::joined(DataSource::new(dataset, batcher), sampler)
    }

    /// [`new`](Self::new), with a batcher that knows which samples of the run it is given, as one that augments them.
    ///
    /// # Errors
    ///
    /// As there, and when it makes rows of partners while the sampler draws from files that not every replica reads.
    pub fn of_samples(
        dataset: impl Dataset<I> + 'static,
        batcher: impl SampleBatcher<I, B> + 'static,
        sampler: impl Sampler + 'static,
    ) -> Result<Self> {
        Self::joined(DataSource::of_samples(dataset, batcher), sampler)
    }

    fn joined(source: DataSource<I, B>, sampler: impl Sampler + 'static) -> Result<Self> {
        if sampler.samples() != source.len() {
            return Err(Error::invalid(format!(
                "the sampler draws from {} samples and the dataset has {}; make the sampler from this dataset",
                sampler.samples(),
                source.len()
            )));
        }
        if source.partner().is_some() && sampler.divides_files() {
            return Err(Error::invalid(
                "rows are mixed with others of the global batch, and the sampler divides files, which not every replica reads: leave \
                 mixing out, or draw from files that all replicas read",
            ));
        }
        Ok(Self { source, sampler: Arc::new(sampler) })
    }

    /// The dataset and its batcher.
    pub(crate) fn source(&self) -> &DataSource<I, B> {
        &self.source
    }

    /// The sampler.
    pub fn sampler(&self) -> &dyn Sampler {
        self.sampler.as_ref()
    }
}

/// The data of one step.
#[derive(Debug)]
pub struct StepData<B> {
    /// The micro-batches of this replica, in order.
    pub micro_batches: Vec<MicroBatch<B>>,
    /// How many samples the step has over all replicas.
    pub samples: usize,
    /// How many samples have been drawn once the step is done: where a resumed run goes on.
    pub position: u64,
    /// How long the step waited for its data.
    pub waited: Duration,
    /// How many steps were ready when this one was asked for, itself included.
    pub ahead: usize,
}

/// Loads one replica's micro-batches, step after step until the data ends, ahead of the step on threads of its own.
///
/// Ranks that stand at the same position along the data axis load the same. As an iterator it is over once the data has
/// ended, or after an error.
#[derive(Debug)]
pub struct Loader<B> {
    steps: Prefetch<StepData<B>>,
    /// Where the next step begins.
    position: u64,
    end: Option<u64>,
}

impl<B: Send + 'static> Loader<B> {
    /// Starts loading the steps that follow `position` samples.
    ///
    /// # Errors
    ///
    /// When no batch begins there, the sampler draws for other replicas, or no thread can be had.
    pub fn start<I: 'static>(
        data: &TrainData<I, B>,
        share: BatchShard,
        device: &Device,
        position: u64,
    ) -> Result<Self> {
        Self::start_ahead(data, share, device, position, PrefetchConfig::default())
    }

    /// [`start`](Self::start), so many steps ahead, on so many threads.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_ahead<I: 'static>(
        data: &TrainData<I, B>,
        share: BatchShard,
        device: &Device,
        position: u64,
        ahead: PrefetchConfig,
    ) -> Result<Self> {
        let end = data.sampler.end();
        let is_over = move |position| end.is_some_and(|end| position >= end);
        if !is_over(position) {
            share.rows_of(&data.sampler.batch(position)?)?;
        }
        let (sampler, mut next) = (data.sampler.clone(), position);
        let draw = move || {
            if is_over(next) {
                return None;
            }
            let batch = sampler.batch(next);
            next = batch.as_ref().map_or(next, GlobalBatch::end);
            Some(batch)
        };
        let (source, device) = (data.source.clone(), device.clone());
        let make = move |batch: GlobalBatch| {
            let micro_batch = |rows: Vec<usize>| source.micro_batch(&batch, &rows, share.replica, &device);
            let micro_batches = share.rows_of(&batch)?.into_iter().map(micro_batch).collect::<Result<_>>()?;
            let (samples, position) = (batch.indices.len(), batch.end());
            Ok(StepData { micro_batches, samples, position, waited: Duration::ZERO, ahead: 0 })
        };
        Ok(Self { steps: Prefetch::start(ahead, draw, make)?, position, end })
    }

    /// The data of the next step.
    ///
    /// # Errors
    ///
    /// When the data has ended, or the dataset, the batcher or the sampler failed; again, if it is asked again.
    pub fn next_step(&mut self) -> Result<StepData<B>> {
        match (self.next(), self.end) {
            (Some(step), _) => step,
            (None, Some(end)) if self.position >= end => Err(Error::invalid(format!(
                "the data has ended after {end} samples; make fewer steps, or draw more epochs"
            ))),
            _ => Err(Error::invalid("the thread that loads data ended with an earlier error")),
        }
    }
}

impl<B: Send + 'static> Iterator for Loader<B> {
    type Item = Result<StepData<B>>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.steps.next()?;
        let (waited, ahead) = (self.steps.waited(), self.steps.ahead());
        if let Ok(step) = &step {
            self.position = step.position;
        }
        Some(step.map(|step| StepData { waited, ahead, ..step }))
    }
}
