//! The steps of a training run, each as the micro-batches of one replica.

use std::sync::Arc;
use std::time::Duration;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::tensor::Device;

use super::cut::Share;
use super::prefetch::Prefetch;
use super::sampler::Sampler;
use super::source::Source;
use crate::engine::MicroBatch;
use crate::error::{Error, Result};

/// How many steps the loader works ahead.
const AHEAD: usize = 2;

/// What a run trains on: a dataset, a batcher, and a sampler that draws from it. A cheap clone.
pub struct TrainData<I, B> {
    source: Source<I, B>,
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
        let source = Source::new(dataset, batcher);
        if sampler.samples() != source.len() {
            return Err(Error::invalid(format!(
                "the sampler draws from {} samples and the dataset has {}; make the sampler from this dataset",
                sampler.samples(),
                source.len()
            )));
        }
        Ok(Self { source, sampler: Arc::new(sampler) })
    }

    /// The sampler.
    pub fn sampler(&self) -> &dyn Sampler {
        self.sampler.as_ref()
    }
}

/// The data of one step.
#[derive(Debug)]
pub struct Step<B> {
    /// The micro-batches of this replica, in order.
    pub micro_batches: Vec<MicroBatch<B>>,
    /// How many samples the step has over all replicas.
    pub samples: usize,
    /// How many samples have been drawn once the step is done: where a resumed run goes on.
    pub position: u64,
    /// How long the step waited for its data.
    pub waited: Duration,
}

/// Loads one replica's micro-batches, step after step without end, ahead of the step on a thread of its own.
///
/// Ranks that stand at the same position along the data axis load the same.
#[derive(Debug)]
pub struct Loader<B> {
    steps: Prefetch<Step<B>>,
}

impl<B: Send + 'static> Loader<B> {
    /// Starts loading the steps that follow `position` samples.
    ///
    /// # Errors
    ///
    /// When no batch begins there, or no thread can be had.
    pub fn start<I: 'static>(data: &TrainData<I, B>, share: Share, device: &Device, position: u64) -> Result<Self> {
        data.sampler.batch(position)?;
        let (data, device, mut position) = (data.clone(), device.clone(), position);
        let load = move || -> Result<Step<B>> {
            let batch = data.sampler.batch(position)?;
            position = batch.end();
            let samples = batch.indices.len();
            let micro_batch = |rows| data.source.micro_batch(&batch, rows, &device);
            let micro_batches = share.rows(samples).into_iter().map(micro_batch).collect::<Result<_>>()?;
            Ok(Step { micro_batches, samples, position, waited: Duration::ZERO })
        };
        let mut load = load;
        Ok(Self { steps: Prefetch::start(AHEAD, move || Some(load()))? })
    }

    /// The data of the next step.
    ///
    /// # Errors
    ///
    /// When the dataset, the batcher or the sampler failed; again, if it is asked again.
    pub fn next_step(&mut self) -> Result<Step<B>> {
        match self.steps.next() {
            Some(Ok(step)) => Ok(Step { waited: self.steps.waited(), ..step }),
            Some(Err(error)) => Err(error),
            None => Err(Error::invalid("the thread that loads data ended with an earlier error")),
        }
    }
}
