//! What is random in a sample.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What one view of one sample draws: numbers that follow from the seed, the sample's number and the view alone.
///
/// A sample's number counts what the run drew before it: no layout changes it, nor a run that is resumed, and each epoch has others.
/// Views are several images that are made of one, each with draws of its own.
#[derive(Clone, Debug)]
pub struct Draws(ChaCha8Rng);

impl Draws {
    /// The draws of a view of a sample.
    pub fn new(seed: u64, sample: u64, view: u64) -> Self {
        let mut key = [0; 32];
        let parts = [seed.to_le_bytes(), view.to_le_bytes(), *b"augments"];
        parts.iter().zip(key.chunks_mut(8)).for_each(|(part, key)| key.copy_from_slice(part));
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream(sample);
        Self(generator)
    }

    /// A number between the two.
    pub fn uniform(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * self.0.random::<f64>()
    }

    /// A number from 0 to one below `end`, which is at least 1.
    pub fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end as u64) as usize
    }

    /// Whether something happens that has this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.0.random::<f64>() < probability
    }

    /// An order by chance.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        items.shuffle(&mut self.0);
    }

    /// The generator, for distributions of other crates.
    pub(in crate::vision) fn generator(&mut self) -> &mut ChaCha8Rng {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_depend_on_seed_sample_and_view_alone() {
        let of = |seed, sample, view| Draws::new(seed, sample, view).uniform([0.0, 1.0]);
        let all = [of(0, 0, 0), of(1, 0, 0), of(0, 1, 0), of(0, 0, 1), of(0, 1, 1)];
        for (index, number) in all.iter().enumerate() {
            assert!(!all[..index].contains(number), "{all:?}");
        }
        assert_eq!(of(5, 6, 7), of(5, 6, 7));
    }
}
