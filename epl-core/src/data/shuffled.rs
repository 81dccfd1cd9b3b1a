//! Batches of a fixed number of samples, each epoch in a new order.

use rand::seq::SliceRandom;

use super::epoch::{Epochs, generator};
use super::sampler::{GlobalBatch, Sampler, end_after};
use crate::error::{Error, Result};

/// Draws global batches of a fixed number of samples, each epoch in an order of its own.
///
/// Epochs follow each other without a gap: the batch at their border takes the rest of the one and the beginning of
/// the next, so that every step has the same size. Where the data [ends](Self::with_epochs), the last one is smaller.
///
/// ```
/// use epl_core::data::{Sampler, ShuffledSampler};
///
/// let sampler = ShuffledSampler::new(5, 2, 7)?.with_epochs(1)?;
/// let (mut position, mut sizes) = (0, Vec::new());
/// while sampler.end().is_none_or(|end| position < end) {
///     let batch = sampler.batch(position)?;
///     sizes.push(batch.indices.len());
///     position = batch.end();
/// }
/// assert_eq!(sizes, [2, 2, 1]);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct ShuffledSampler {
    samples: usize,
    global_batch: usize,
    seed: u64,
    end: Option<u64>,
    epochs: Epochs<Vec<usize>>,
}

impl ShuffledSampler {
    /// A sampler over `samples` samples that draws `global_batch` of them a step, over all replicas.
    ///
    /// # Errors
    ///
    /// When either number is zero.
    pub fn new(samples: usize, global_batch: usize, seed: u64) -> Result<Self> {
        if samples == 0 {
            return Err(Error::invalid("the dataset has no sample; training needs at least one"));
        }
        if global_batch == 0 {
            return Err(Error::invalid("the global batch has 0 samples; it needs at least one"));
        }
        Ok(Self { samples, global_batch, seed, end: None, epochs: Epochs::new() })
    }

    /// Ends the run after so many epochs.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn with_epochs(self, epochs: u64) -> Result<Self> {
        Ok(Self { end: Some(end_after(epochs, self.samples)?), ..self })
    }

    fn index(&self, number: u64) -> usize {
        let samples = self.samples as u64;
        self.permutation(number / samples)[(number % samples) as usize]
    }

    fn permutation(&self, epoch: u64) -> std::sync::Arc<Vec<usize>> {
        self.epochs.get(epoch, || {
            let mut order: Vec<usize> = (0..self.samples).collect();
            order.shuffle(&mut generator(self.seed, epoch));
            order
        })
    }
}

impl Sampler for ShuffledSampler {
    fn samples(&self) -> usize {
        self.samples
    }

    fn batch(&self, position: u64) -> Result<GlobalBatch> {
        let end = position.saturating_add(self.global_batch as u64);
        // Past the end of the data there is no sample.
        let numbers = position..self.end.map_or(end, |last| end.min(last)).max(position);
        let mut indices = Vec::new();
        let reserved = usize::try_from(numbers.end - position).map(|samples| indices.try_reserve_exact(samples));
        if !matches!(reserved, Ok(Ok(()))) {
            return Err(Error::invalid(format!(
                "a global batch of {} samples (train.global_batch_size) after {position}: there is no memory for the numbers \
                 of so many, 8 bytes each; take fewer, in more steps",
                self.global_batch
            )));
        }
        indices.extend(numbers.map(|number| self.index(number)));
        Ok(GlobalBatch::new(position, indices))
    }

    fn order(&self) -> String {
        // The size of a batch is left out: another one goes on in the same order.
        format!("{} samples shuffled with seed {}", self.samples, self.seed)
    }

    fn end(&self) -> Option<u64> {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(sampler: &ShuffledSampler, from: u64, count: usize) -> Vec<GlobalBatch> {
        let mut position = from;
        let next = |_| {
            let batch = sampler.batch(position).unwrap();
            position = batch.end();
            batch
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn an_epoch_draws_each_sample_once_and_differs_from_the_next() {
        let sampler = ShuffledSampler::new(10, 4, 7).unwrap();
        let drawn: Vec<usize> = batches(&sampler, 0, 5).into_iter().flat_map(|batch| batch.indices).collect();
        let (first, second) = drawn.split_at(10);
        for epoch in [first, second] {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_ne!(first, second);
    }

    #[test]
    fn a_batch_depends_on_nothing_but_seed_and_position() {
        let whole = batches(&ShuffledSampler::new(10, 4, 7).unwrap(), 0, 9);
        let resumed = batches(&ShuffledSampler::new(10, 4, 7).unwrap(), 16, 5);
        assert_eq!(whole[4..], resumed);
        assert_ne!(whole, batches(&ShuffledSampler::new(10, 4, 8).unwrap(), 0, 9));
    }

    #[test]
    fn another_batch_size_keeps_the_order() {
        let order = |size, count| {
            let sampler = ShuffledSampler::new(10, size, 7).unwrap();
            batches(&sampler, 0, count).into_iter().flat_map(|batch| batch.indices).collect::<Vec<_>>()
        };
        assert_eq!(order(4, 6), order(3, 8));
    }

    #[test]
    fn a_batch_may_be_larger_than_the_dataset() {
        let sampler = ShuffledSampler::new(3, 8, 7).unwrap();
        let batch = sampler.batch(1).unwrap();
        assert_eq!((batch.indices.len(), batch.end()), (8, 9));
    }

    #[test]
    fn the_last_batch_ends_with_the_data() {
        let sampler = ShuffledSampler::new(5, 4, 7).unwrap().with_epochs(2).unwrap();
        let sizes: Vec<usize> = batches(&sampler, 0, 3).iter().map(|batch| batch.indices.len()).collect();
        assert_eq!((sizes, sampler.end()), (vec![4, 4, 2], Some(10)));
        assert_eq!(sampler.order(), ShuffledSampler::new(5, 4, 7).unwrap().order());
    }

    #[test]
    fn past_the_end_a_batch_is_empty() {
        let sampler = ShuffledSampler::new(5, 4, 7).unwrap().with_epochs(2).unwrap();
        for position in [10, 11, u64::MAX] {
            assert_eq!(sampler.batch(position).unwrap(), GlobalBatch::new(position, Vec::new()));
        }
    }

    #[test]
    fn going_back_over_an_epoch_border_gives_the_same() {
        let sampler = ShuffledSampler::new(5, 2, 7).unwrap();
        let first = sampler.batch(4).unwrap();
        sampler.batch(22).unwrap();
        assert_eq!(sampler.batch(4).unwrap(), first);
    }

    #[test]
    fn a_batch_without_memory_for_it_is_refused() {
        for size in [usize::MAX, usize::MAX / 2 + 1, 1 << 60] {
            let refused = |position| ShuffledSampler::new(5, size, 7).unwrap().batch(position).unwrap_err().to_string();
            for position in [0, 5, 1 << 62] {
                let message = refused(position);
                assert!(message.contains(&size.to_string()) && message.contains("global_batch_size"), "{message}");
            }
            // Where the data ends, so does the batch.
            let ends = ShuffledSampler::new(5, size, 7).unwrap().with_epochs(2).unwrap();
            assert_eq!(ends.batch(3).unwrap().indices.len(), 7);
        }
    }

    #[test]
    fn empty_sizes_are_refused() {
        assert!(ShuffledSampler::new(0, 1, 0).unwrap_err().to_string().contains("no sample"));
        assert!(ShuffledSampler::new(1, 0, 0).unwrap_err().to_string().contains("global batch"));
        let none = ShuffledSampler::new(5, 4, 7).unwrap().with_epochs(0).unwrap_err().to_string();
        assert!(none.contains("0 epochs of 5 samples"), "{none}");
    }
}
