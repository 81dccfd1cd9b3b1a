//! A generator for every image: what it draws depends on nothing that other images drew.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The generator of one image of one seed.
pub(super) fn generator(seed: u64, image: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(image);
    generator
}
