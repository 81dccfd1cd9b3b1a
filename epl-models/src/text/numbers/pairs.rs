use std::collections::HashSet;
use std::sync::Arc;

use burn::config::Config;
use burn::data::dataset::{Dataset, DatasetError};
use rand::{Rng, SeedableRng, seq::index};
use rand_chacha::ChaCha8Rng;

use super::{LIMIT, english, german};
use crate::text::{Error, Pair, Result};

/// How the numbers below [`LIMIT`] are split into training and held-out ones.
///
/// Both lists depend on this configuration alone, not on the machine.
/// - *Held out*: drawn uniformly from 0 to 999,999, each at most once. No training item is one of them.
/// - *Training*: drawn from all others. Nine tenths of all numbers have six digits, so uniform draws would hardly
///   ever show *seventeen* alone; the share [`by_length`](Self::by_length) of the items therefore first draws the
///   number of digits, one to six, then a number with as many. The rest is drawn uniformly. A number may come twice.
///
/// ```
/// use epl_models::text::NumberPairsConfig;
///
/// let split = NumberPairsConfig::new().with_training(1000).with_held_out(50).init()?;
/// assert_eq!((split.training.numbers().len(), split.held_out.numbers().len()), (1000, 50));
/// assert!(split.held_out.numbers().iter().all(|number| !split.training.numbers().contains(number)));
/// # Ok::<_, epl_models::text::Error>(())
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct NumberPairsConfig {
    /// Training items.
    #[config(default = 100_000)]
    pub training: usize,
    /// Held-out numbers, at most half of all.
    #[config(default = 2_000)]
    pub held_out: usize,
    /// Share of the training items whose number of digits is drawn first.
    #[config(default = 0.25)]
    pub by_length: f64,
    /// Seed of both draws.
    #[config(default = 0)]
    pub seed: u64,
}

/// The two sides of the split.
#[derive(Clone, Debug)]
pub struct NumberSplit {
    /// What the model learns from.
    pub training: NumberPairs,
    /// What it is judged by.
    pub held_out: NumberPairs,
}

impl NumberPairsConfig {
    /// Draws both sides.
    ///
    /// # Errors
    /// [`Error::HeldOut`], [`Error::Share`] or [`Error::NoTraining`] for values that cannot be.
    pub fn init(&self) -> Result<NumberSplit> {
        let most = LIMIT as usize / 2;
        if self.held_out == 0 || self.held_out > most {
            return Err(Error::HeldOut { held_out: self.held_out, most });
        }
        if !(0.0..=1.0).contains(&self.by_length) {
            return Err(Error::Share { share: self.by_length });
        }
        if self.training == 0 {
            return Err(Error::NoTraining);
        }
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let held_out: Vec<u32> =
            index::sample(&mut random, LIMIT as usize, self.held_out).into_iter().map(|n| n as u32).collect();
        let excluded: HashSet<u32> = held_out.iter().copied().collect();
        let training = (0..self.training).map(|_| self.draw(&mut random, &excluded)).collect();
        Ok(NumberSplit { training: NumberPairs::new(training), held_out: NumberPairs::new(held_out) })
    }

    /// One training number. A rejected draw also draws its kind anew, so that it ends even if every number of one
    /// length is held out.
    fn draw(&self, random: &mut ChaCha8Rng, excluded: &HashSet<u32>) -> u32 {
        loop {
            let number = if random.random_bool(self.by_length) {
                let digits = random.random_range(1..=6_u32);
                let lowest = if digits == 1 { 0 } else { 10_u32.pow(digits - 1) };
                random.random_range(lowest..10_u32.pow(digits))
            } else {
                random.random_range(0..LIMIT)
            };
            if !excluded.contains(&number) {
                return number;
            }
        }
    }
}

/// Numbers as a dataset of (English words, German words).
#[derive(Clone, Debug)]
pub struct NumberPairs {
    numbers: Arc<[u32]>,
}

impl NumberPairs {
    fn new(numbers: Vec<u32>) -> Self {
        Self { numbers: numbers.into() }
    }

    /// The numbers behind the items, in order.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// English and German words of every item, one text after the other: what a tokenizer is trained on.
    pub fn texts(&self) -> impl Iterator<Item = String> + Send + '_ {
        self.numbers.iter().flat_map(|&number| [english(number), german(number)])
    }
}

impl Dataset<Pair> for NumberPairs {
    fn get(&self, index: usize) -> Result<Pair, DatasetError> {
        let number = self.numbers[index];
        Ok(Pair { source: english(number), target: german(number) })
    }

    fn len(&self) -> usize {
        self.numbers.len()
    }
}
