//! Batches of samples of similar length, bounded by the tokens they take once padded.

use std::ops::Range;
use std::sync::Arc;

use rand::seq::SliceRandom;

use super::epoch::{Epochs, generator};
use super::sampler::{GlobalBatch, Sampler, end_after};
use crate::error::{Error, Result};

/// Configures a [`LengthSampler`]. At least one of the two bounds must be given.
///
/// ```
/// # use epl_core::data::{LengthSamplerConfig, Sampler};
/// let lengths = vec![3, 9, 4, 8, 3];
/// let sampler = LengthSamplerConfig::new(7).with_max_tokens(18).init(lengths).unwrap();
/// assert!(sampler.batch(0).unwrap().indices.len() <= 6);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LengthSamplerConfig {
    seed: u64,
    max_tokens: Option<usize>,
    max_samples: Option<usize>,
    spread: f64,
    epochs: Option<u64>,
}

impl LengthSamplerConfig {
    /// No bound yet, a spread of 0.1, and data without end.
    pub fn new(seed: u64) -> Self {
        Self { seed, max_tokens: None, max_samples: None, spread: 0.1, epochs: None }
    }

    /// At most this many tokens in a global batch, padding counted: samples × the longest of them.
    #[must_use]
    pub fn with_max_tokens(mut self, tokens: usize) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// At most this many samples in a global batch.
    #[must_use]
    pub fn with_max_samples(mut self, samples: usize) -> Self {
        self.max_samples = Some(samples);
        self
    }

    /// How much longer than another a sample may be, as a fraction, to count as equally long: 0.1 is a tenth.
    ///
    /// Zero wastes the least padding, and puts samples of rare lengths beside the same companions in every epoch.
    #[must_use]
    pub fn with_spread(mut self, spread: f64) -> Self {
        self.spread = spread;
        self
    }

    /// Ends the run after so many epochs.
    #[must_use]
    pub fn with_epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// The sampler over samples of these lengths: for pairs, the longer of the two or their sum.
    ///
    /// # Errors
    ///
    /// When there is no sample, no bound, a bound or a number of epochs of zero, a negative spread, or a sample longer than
    /// the bound; or a sample without a token, of which a bound on tokens alone would let any number into a batch.
    pub fn init(self, lengths: Vec<usize>) -> Result<LengthSampler> {
        if self.max_tokens.is_none() && self.max_samples.is_none() {
            return Err(Error::invalid("batches by length need a bound: `with_max_tokens` or `with_max_samples`"));
        }
        if self.max_samples == Some(0) {
            return Err(Error::invalid("a global batch of at most 0 samples; it needs at least one"));
        }
        if self.spread.is_nan() || self.spread < 0.0 {
            return Err(Error::invalid(format!("the spread of lengths is {}; it must be 0 or more", self.spread)));
        }
        let Some(longest) = (0..lengths.len()).max_by_key(|&sample| lengths[sample]) else {
            return Err(Error::invalid("the dataset has no sample; training needs at least one"));
        };
        if let (Some(empty), None) = (lengths.iter().position(|length| *length == 0), self.max_samples) {
            return Err(Error::invalid(format!(
                "sample {empty} has 0 tokens, so that a bound on tokens lets any number of such samples into a batch; leave \
                 them out, or bound the samples, too: `with_max_samples`"
            )));
        }
        match self.max_tokens {
            Some(bound) if lengths[longest] > bound => Err(Error::invalid(format!(
                "sample {longest} has {} tokens and a global batch at most {bound}; allow {} or more, or leave out or \
                 shorten such samples",
                lengths[longest], lengths[longest]
            ))),
            _ => {
                let buckets = buckets(&lengths, self.spread);
                let end = self.epochs.map(|epochs| end_after(epochs, lengths.len())).transpose()?;
                Ok(LengthSampler { config: self, lengths, buckets, end, epochs: Epochs::new() })
            }
        }
    }
}

/// Draws global batches of similar length, each epoch in an order of its own. Made by [`LengthSamplerConfig`].
///
/// ```text
/// shuffle the epoch -> sort into buckets of similar length -> fill batches up to the bound -> shuffle the batches
/// ```
///
/// The bound is on the global batch, before it is cut to replicas and micro-batches. An epoch ends with its last
/// batch, wherever in the epoch the smaller one that is left over comes to lie.
///
/// ```
/// use epl_core::data::{LengthSamplerConfig, Sampler};
///
/// let lengths = vec![2, 4, 2, 8, 2, 4, 2];
/// let sampler = LengthSamplerConfig::new(7).with_max_tokens(8).with_epochs(1).init(lengths.clone())?;
/// let (mut position, mut drawn) = (0, Vec::new());
/// while sampler.end().is_none_or(|end| position < end) {
///     let batch = sampler.batch(position)?;
///     drawn.push(batch.indices.iter().map(|sample| lengths[*sample]).collect::<Vec<_>>());
///     position = batch.end();
/// }
/// drawn.sort(); // the order of the batches is the epoch's own
/// assert_eq!(drawn, [vec![2, 2, 2, 2], vec![4, 4], vec![8]]);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LengthSampler {
    config: LengthSamplerConfig,
    lengths: Vec<usize>,
    /// The bucket of every sample; buckets are numbered from the shortest.
    buckets: Vec<u32>,
    end: Option<u64>,
    epochs: Epochs<Epoch>,
}

#[derive(Debug)]
struct Epoch {
    /// Dataset indices, batch after batch.
    order: Vec<usize>,
    /// The ranges of `order` that are batches, ascending.
    batches: Vec<Range<usize>>,
}

/// Numbers each sample's bucket. A bucket begins at the shortest length that the one before does not reach.
fn buckets(lengths: &[usize], spread: f64) -> Vec<u32> {
    let mut known: Vec<usize> = lengths.to_vec();
    known.sort_unstable();
    known.dedup();
    let mut starts: Vec<usize> = Vec::new();
    for length in known {
        match starts.last() {
            Some(&start) if length as f64 <= start as f64 * (1.0 + spread) => {}
            _ => starts.push(length),
        }
    }
    lengths.iter().map(|length| starts.partition_point(|start| start <= length) as u32).collect()
}

impl LengthSampler {
    /// How many batches an epoch has. With a spread, epochs may differ by a few.
    pub fn batches_in(&self, epoch: u64) -> usize {
        self.epoch(epoch).batches.len()
    }

    fn epoch(&self, epoch: u64) -> Arc<Epoch> {
        self.epochs.get(epoch, || {
            let mut generator = generator(self.config.seed, epoch);
            let mut samples: Vec<usize> = (0..self.lengths.len()).collect();
            samples.shuffle(&mut generator);
            // Stable: inside a bucket the shuffled order stays.
            samples.sort_by_key(|&sample| self.buckets[sample]);
            let mut filled = self.fill(&samples);
            filled.shuffle(&mut generator);
            let mut epoch = Epoch { order: Vec::with_capacity(samples.len()), batches: Vec::new() };
            for range in filled {
                let start = epoch.order.len();
                epoch.order.extend_from_slice(&samples[range]);
                epoch.batches.push(start..epoch.order.len());
            }
            epoch
        })
    }

    /// Cuts `samples` into batches, each as large as the bounds allow.
    fn fill(&self, samples: &[usize]) -> Vec<Range<usize>> {
        let mut batches = Vec::new();
        let (mut start, mut longest) = (0, 0);
        for (end, &sample) in samples.iter().enumerate() {
            let padded = (end + 1 - start).saturating_mul(longest.max(self.lengths[sample]));
            let full = self.config.max_tokens.is_some_and(|bound| padded > bound)
                || self.config.max_samples.is_some_and(|bound| end - start == bound);
            if full && end > start {
                batches.push(start..end);
                (start, longest) = (end, 0);
            }
            longest = longest.max(self.lengths[sample]);
        }
        batches.push(start..samples.len());
        batches
    }
}

impl Sampler for LengthSampler {
    fn samples(&self) -> usize {
        self.lengths.len()
    }

    fn batch(&self, position: u64) -> Result<GlobalBatch> {
        let samples = self.lengths.len() as u64;
        let (number, offset) = (position / samples, (position % samples) as usize);
        let epoch = self.epoch(number);
        match epoch.batches.binary_search_by_key(&offset, |range| range.start) {
            Ok(found) => {
                let indices = epoch.order[epoch.batches[found].clone()].to_vec();
                Ok(GlobalBatch::new(position, indices))
            }
            Err(_) => Err(Error::invalid(format!(
                "no batch begins after {position} samples (sample {offset} of epoch {number}); the run that reached \
                 it drew in another way than {}",
                self.order()
            ))),
        }
    }

    fn order(&self) -> String {
        let bound = |bound: Option<usize>| bound.map_or("any number of".to_string(), |bound| bound.to_string());
        format!(
            "{} samples ({} tokens) by length with seed {}, spread {}, at most {} tokens and {} samples a batch",
            self.lengths.len(),
            self.lengths.iter().sum::<usize>(),
            self.config.seed,
            self.config.spread,
            bound(self.config.max_tokens),
            bound(self.config.max_samples),
        )
    }

    fn end(&self) -> Option<u64> {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2,000 lengths between 1 and 60, most of them short.
    fn lengths() -> Vec<usize> {
        (0..2000usize).map(|i| 1 + (i * i * 7919 + i * 31) % 60 * ((i * 13) % 60) / 60).collect()
    }

    fn epoch(sampler: &LengthSampler, number: u64) -> Vec<GlobalBatch> {
        let mut position = number * sampler.samples() as u64;
        let mut batches = Vec::new();
        while position < (number + 1) * sampler.samples() as u64 {
            batches.push(sampler.batch(position).unwrap());
            position = batches.last().unwrap().end();
        }
        assert_eq!(position, (number + 1) * sampler.samples() as u64, "an epoch ends with a batch");
        batches
    }

    fn padded(sampler: &LengthSampler, batch: &GlobalBatch) -> usize {
        batch.indices.iter().map(|&i| sampler.lengths[i]).max().unwrap() * batch.indices.len()
    }

    #[test]
    fn every_epoch_draws_each_sample_once_inside_the_bounds() {
        let sampler = LengthSamplerConfig::new(3).with_max_tokens(400).with_max_samples(50).init(lengths()).unwrap();
        for number in 0..3 {
            let batches = epoch(&sampler, number);
            assert_eq!(batches.len(), sampler.batches_in(number));
            assert!(batches.iter().all(|batch| padded(&sampler, batch) <= 400 && batch.indices.len() <= 50));
            let mut drawn: Vec<usize> = batches.into_iter().flat_map(|batch| batch.indices).collect();
            drawn.sort_unstable();
            assert_eq!(drawn, (0..2000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn little_is_padded_and_few_batches_are_small() {
        let sampler = LengthSamplerConfig::new(3).with_max_tokens(400).init(lengths()).unwrap();
        let batches = epoch(&sampler, 0);
        let padded_tokens: usize = batches.iter().map(|batch| padded(&sampler, batch)).sum();
        let tokens: usize = lengths().iter().sum();
        let waste = padded_tokens as f64 / tokens as f64 - 1.0;
        assert!(waste < 0.1, "padding adds {waste}");
        // One is left over; the others stop at most one sample before the bound.
        let small = batches.iter().filter(|batch| padded(&sampler, batch) < 400 - 2 * 60).count();
        assert!(small <= 1, "{small} of {} batches are small", batches.len());
    }

    #[test]
    fn epochs_differ_in_order_and_in_company() {
        let sampler = LengthSamplerConfig::new(3).with_max_tokens(400).init(lengths()).unwrap();
        let sets = |number| {
            let sorted = |mut batch: GlobalBatch| {
                batch.indices.sort_unstable();
                batch.indices
            };
            epoch(&sampler, number).into_iter().map(sorted).collect::<std::collections::HashSet<_>>()
        };
        let (first, second) = (sets(0), sets(1));
        assert!(first.intersection(&second).count() <= 2);
        let longest = |batch: &GlobalBatch| batch.indices.iter().map(|&i| sampler.lengths[i]).max();
        assert!(!epoch(&sampler, 0).is_sorted_by_key(longest), "short batches do not come first");
    }

    #[test]
    fn the_order_follows_from_the_seed() {
        let make = |seed| LengthSamplerConfig::new(seed).with_max_samples(7).init(lengths()).unwrap();
        assert_eq!(epoch(&make(3), 2), epoch(&make(3), 2));
        assert_ne!(epoch(&make(3), 2), epoch(&make(4), 2));
    }

    #[test]
    fn a_spread_of_zero_sorts_exactly() {
        let sampler = LengthSamplerConfig::new(3).with_max_samples(3).with_spread(0.0);
        let sampler = sampler.init(vec![5, 1, 5, 1, 5, 1]).unwrap();
        for batch in epoch(&sampler, 0) {
            assert_eq!(batch.indices.iter().map(|i| i % 2).sum::<usize>() % 3, 0, "one length a batch");
        }
    }

    #[test]
    fn a_position_inside_a_batch_is_refused() {
        let sampler = LengthSamplerConfig::new(3).with_max_samples(4).init(vec![2; 8]).unwrap();
        let message = sampler.batch(8 + 3).unwrap_err().to_string();
        assert!(message.contains("after 11 samples") && message.contains("epoch 1"), "{message}");
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let refused =
            |config: LengthSamplerConfig, lengths: &[usize]| config.init(lengths.to_vec()).unwrap_err().to_string();
        let config = LengthSamplerConfig::new(0);
        assert!(refused(config.clone(), &[1]).contains("need a bound"));
        assert!(refused(config.clone().with_max_samples(0), &[1]).contains("at most 0"));
        assert!(refused(config.clone().with_max_tokens(9), &[]).contains("no sample"));
        assert!(refused(config.clone().with_max_samples(9).with_spread(-0.5), &[1]).contains("-0.5"));
        assert!(refused(config.clone().with_max_samples(9).with_epochs(0), &[1]).contains("0 epochs"));
        let message = refused(config.clone().with_max_tokens(9), &[3, 0, 5]);
        assert!(message.contains("sample 1 has 0 tokens") && message.contains("with_max_samples"), "{message}");
        assert!(config.clone().with_max_tokens(9).with_max_samples(2).init(vec![3, 0, 5]).is_ok());
        let message = refused(config.with_max_tokens(9), &[3, 12]);
        assert!(message.contains("sample 1 has 12 tokens") && message.contains("at most 9"), "{message}");
    }
}
