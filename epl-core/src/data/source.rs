//! A Burn dataset and the batcher that makes tensors of its items.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::tensor::Device;

use super::sampler::GlobalBatch;
use crate::engine::MicroBatch;
use crate::error::{Error, Result};

/// An item of the dataset as a sample of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<I> {
    /// What the dataset has.
    pub item: I,
    /// How many samples the run drew before it; in an evaluation, its index. No layout changes it, nor a run that is resumed.
    pub number: u64,
}

/// The samples that a micro-batch is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples<I> {
    /// Those of the micro-batch's rows, then their partners of which it has no row.
    pub all: Vec<Sample<I>>,
    /// How many rows it has.
    pub rows: usize,
    /// Where each row's partner is among `all`; empty, where rows have [none](SampleBatcher::partner).
    pub partners: Vec<usize>,
    /// The number of the global batch's first sample, the same for all of its micro-batches.
    pub first: u64,
}

/// Makes a batch of samples, of which it is told the numbers: what is random in a sample follows from its number, so that neither the
/// layout nor a stop changes it, and each epoch has something else. A Burn [`Batcher`] is one that does not look at numbers.
pub trait SampleBatcher<I, B>: Send + Sync {
    /// How many rows before a row its partner stands in the global batch, behind whose last row the first one follows; none, if each
    /// row is made of its own sample.
    ///
    /// The global batch is the same in every layout, and so is a partner. With a distance of 1 a micro-batch of neighbours reads one
    /// sample more than it has rows.
    fn partner(&self) -> Option<usize> {
        None
    }

    /// The batch.
    ///
    /// # Errors
    ///
    /// When a sample cannot be brought into its form.
    fn batch_samples(&self, samples: Samples<I>, device: &Device) -> Result<B>;
}

/// A Burn batcher, which is told no numbers.
struct OfItems<T>(T);

impl<I, B, T: Batcher<I, B>> SampleBatcher<I, B> for OfItems<T> {
    fn batch_samples(&self, samples: Samples<I>, device: &Device) -> Result<B> {
        Ok(self.0.batch(samples.all.into_iter().map(|sample| sample.item).collect(), device))
    }
}

/// A Burn [`Dataset`] of items `I` and a [`Batcher`] or a [`SampleBatcher`] that makes a `B` of several of them. A cheap clone.
///
/// Both are called on the threads that load data, several at a time where that is set. They must not draw from Burn's
/// generator, which all ranks share: what is random follows from a sample's index, or from its number.
///
/// ```
/// # use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, tensor::{Device, Tensor}};
/// # use epl_core::data::{DataSource, GlobalBatch};
/// # #[derive(Clone)]
/// # struct Column;
/// # impl Batcher<f32, Tensor<1>> for Column {
/// #     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<1> { Tensor::from_floats(items.as_slice(), device) }
/// # }
/// let source = DataSource::new(InMemDataset::new(vec![0.0, 10.0, 20.0, 30.0]), Column);
/// // The last two of three samples that a step draws, after eight that were drawn before.
/// let batch = GlobalBatch::new(8, vec![3, 0, 1]);
/// let made = source.micro_batch(&batch, &[1, 2], 0, &Device::flex())?;
/// assert_eq!(made.batch.into_data().to_vec::<f32>().unwrap(), [0.0, 10.0]);
/// assert_eq!((&made.samples[..], made.empty), (&[9, 10][..], false));
/// assert!(source.micro_batch(&batch, &[], 0, &Device::flex())?.empty); // a replica that has no row runs one that does not count
/// # Ok::<_, epl_core::Error>(())
/// ```
pub struct DataSource<I, B> {
    dataset: Arc<dyn Dataset<I>>,
    batcher: Arc<dyn SampleBatcher<I, B>>,
}

impl<I, B> Clone for DataSource<I, B> {
    fn clone(&self) -> Self {
        Self { dataset: self.dataset.clone(), batcher: self.batcher.clone() }
    }
}

impl<I, B> DataSource<I, B> {
    /// A source of batches.
    pub fn new(dataset: impl Dataset<I> + 'static, batcher: impl Batcher<I, B> + 'static) -> Self {
        Self::of_samples(dataset, OfItems(batcher))
    }

    /// A source of batches that depend on the samples' numbers.
    pub fn of_samples(dataset: impl Dataset<I> + 'static, batcher: impl SampleBatcher<I, B> + 'static) -> Self {
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

    /// How far away the partners of rows are, if they have some.
    pub(super) fn partner(&self) -> Option<usize> {
        self.batcher.partner()
    }

    /// Makes a micro-batch of some rows of a replica's share of a global batch; of no row, a stand-in.
    ///
    /// # Errors
    ///
    /// When the dataset cannot read a sample; when it, or the batcher, fails or panics.
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
        let drawn = Drawn::of(batch, rows, replica, self.partner());
        let failed = |what: &str, cause: &dyn Display| {
            Error::invalid(format!("the {what} the samples with indices {:?}: {cause}", drawn.indices))
        };
        let items = epl_comm::catch(|| self.dataset.get_many(drawn.indices.clone()));
        let items = items.map_err(|panic| failed("dataset failed on", &panic))?;
        let items = items.map_err(|cause| failed("dataset could not read", &cause))?;
        let numbered = items.into_iter().zip(&drawn.numbers).map(|(item, number)| Sample { item, number: *number });
        let samples = Samples {
            all: numbered.collect(),
            rows: rows.len().max(1),
            partners: drawn.partners.clone(),
            first: batch.first,
        };
        let made = epl_comm::catch(|| self.batcher.batch_samples(samples, device));
        let made = made.map_err(|panic| failed("batcher failed on", &panic))?;
        let made = made.map_err(|cause| failed("batcher could not make a batch of", &cause))?;
        Ok(match rows {
            [] => MicroBatch::stand_in(made, vec![batch.first]),
            _ => MicroBatch::new(made, drawn.numbers[..rows.len()].to_vec()),
        })
    }
}

/// What is read for a micro-batch: rows, then those partners that are not among them.
struct Drawn {
    indices: Vec<usize>,
    numbers: Vec<u64>,
    partners: Vec<usize>,
}

impl Drawn {
    fn of(batch: &GlobalBatch, rows: &[usize], replica: usize, distance: Option<usize>) -> Self {
        if rows.is_empty() {
            // Whatever stands in is its own partner: a replica need not be able to read another's samples.
            let partners = distance.map_or_else(Vec::new, |_| vec![0]);
            return Self { indices: vec![batch.stand_in(replica)], numbers: vec![batch.first], partners };
        }
        let (total, mut read, mut partners) = (batch.indices.len(), rows.to_vec(), Vec::new());
        let mut places: HashMap<usize, usize> = rows.iter().copied().zip(0..).collect();
        if let Some(distance) = distance {
            for row in rows {
                let partner = (row + total - distance % total) % total;
                let place = *places.entry(partner).or_insert_with(|| {
                    read.push(partner);
                    read.len() - 1
                });
                partners.push(place);
            }
        }
        Self {
            indices: read.iter().map(|row| batch.indices[*row]).collect(),
            numbers: read.iter().map(|row| batch.first + *row as u64).collect(),
            partners,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_that_are_no_rows_are_read_once() {
        let batch = GlobalBatch::new(40, vec![7, 3, 9, 1, 5]);
        let drawn = |rows: &[usize], distance| {
            let Drawn { indices, numbers, partners } = Drawn::of(&batch, rows, 0, distance);
            (indices, numbers, partners)
        };
        assert_eq!(drawn(&[1, 2, 3], None), (vec![3, 9, 1], vec![41, 42, 43], vec![]));
        assert_eq!(drawn(&[1, 2, 3], Some(1)), (vec![3, 9, 1, 7], vec![41, 42, 43, 40], vec![3, 0, 1]));
        assert_eq!(drawn(&[0, 1], Some(1)), (vec![7, 3, 5], vec![40, 41, 44], vec![2, 0]));
        // Far around: two rows before.
        assert_eq!(drawn(&[1], Some(7)), (vec![3, 5], vec![41, 44], vec![1]));
        assert_eq!(drawn(&[], Some(1)), (vec![7], vec![40], vec![0]));
        let alone = Drawn::of(&GlobalBatch::new(2, vec![6]), &[0], 0, Some(1));
        assert_eq!((alone.indices, alone.partners), (vec![6], vec![0]));
    }
}
