//! The permutation of one epoch.

use std::sync::{Arc, Mutex, PoisonError};

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// What shuffles one epoch: its stream of the run's generator.
pub(super) fn generator(seed: u64, epoch: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(epoch);
    generator
}

/// Keeps what was computed for the last two epochs.
///
/// Two, since a batch may cross the border between them, and ranks that share a sampler stand on both sides of it.
#[derive(Debug)]
pub(super) struct Epochs<T>(Mutex<[Option<(u64, Arc<T>)>; 2]>);

impl<T> Epochs<T> {
    pub(super) fn new() -> Self {
        Self(Mutex::new([None, None]))
    }

    /// What belongs to `epoch`, computed under the lock if it is not there: ranks that wait need the same.
    pub(super) fn get(&self, epoch: u64, compute: impl FnOnce() -> T) -> Arc<T> {
        // A panic in `compute` leaves the slots as they were.
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = slots.iter().flatten().find(|(known, _)| *known == epoch) {
            return found.clone();
        }
        let computed = Arc::new(compute());
        slots.rotate_right(1);
        slots[0] = Some((epoch, computed.clone()));
        computed
    }
}
