//! The algebra of batch sizes: global batch = replicas × micro-batches × micro-batch size.

use super::error::{ConfigError, Result};
use super::sections::Config;

/// The batch of a step, all four sizes known.
///
/// The global batch is cut into `replicas × num_micro_batch` pieces. Where it does not divide, some
/// pieces have one sample less than `micro_batch_size`, down to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Samples of a step, over all replicas and micro-batches.
    pub global_batch_size: usize,
    /// Samples of the largest micro-batch; where `io.row_weights` divide them unevenly, of an even division.
    pub micro_batch_size: usize,
    /// Micro-batches that each replica runs in a step.
    pub num_micro_batch: usize,
    /// Replicas: the size of the data axis.
    pub replicas: usize,
}

impl Batch {
    /// Whether all micro-batches have the same size.
    pub fn is_even(&self) -> bool {
        self.global_batch_size == self.micro_batch_size * self.num_micro_batch * self.replicas
    }

    /// Finds the third of the three settings from the other two; a single micro-batch where only
    /// one batch size is given.
    ///
    /// # Errors
    ///
    /// Three that disagree; a micro-batch size that does not divide the global batch; no batch size
    /// at all; a size of zero.
    ///
    /// # Panics
    ///
    /// When `replicas` is zero: no mesh has none.
    pub fn resolve(
        global_batch_size: Option<usize>,
        micro_batch_size: Option<usize>,
        num_micro_batch: Option<usize>,
        replicas: usize,
    ) -> Result<Self> {
        assert!(replicas > 0, "a mesh has at least one replica");
        for (what, given) in [
            ("train.global_batch_size", global_batch_size),
            ("train.micro_batch_size", micro_batch_size),
            ("pipeline.num_micro_batch", num_micro_batch),
        ] {
            if given == Some(0) {
                return Err(ConfigError::BatchZero { what });
            }
        }
        match (global_batch_size, micro_batch_size, num_micro_batch) {
            (None, None, _) => Err(ConfigError::BatchMissing),
            (Some(global), None, number) => Self::from_global(global, number.unwrap_or(1), replicas),
            (None, Some(micro), number) => Self::from_micro(micro, number.unwrap_or(1), replicas),
            (Some(global), Some(micro), None) => Self::from_sizes(global, micro, replicas),
            (Some(global), Some(micro), Some(number)) => {
                let batch = Self::from_micro(micro, number, replicas)?;
                if batch.global_batch_size == global {
                    return Ok(batch);
                }
                Err(ConfigError::BatchDisagrees {
                    micro_batch_size: micro,
                    num_micro_batch: number,
                    replicas,
                    product: batch.global_batch_size as u128,
                    global_batch_size: global,
                })
            }
        }
    }

    fn from_global(global_batch_size: usize, num_micro_batch: usize, replicas: usize) -> Result<Self> {
        let pieces = product([num_micro_batch, replicas])?;
        let micro_batch_size = global_batch_size.div_ceil(pieces);
        product([micro_batch_size, pieces])?;
        Ok(Self { global_batch_size, micro_batch_size, num_micro_batch, replicas })
    }

    fn from_micro(micro_batch_size: usize, num_micro_batch: usize, replicas: usize) -> Result<Self> {
        let global_batch_size = product([micro_batch_size, product([num_micro_batch, replicas])?])?;
        Ok(Self { global_batch_size, micro_batch_size, num_micro_batch, replicas })
    }

    fn from_sizes(global_batch_size: usize, micro_batch_size: usize, replicas: usize) -> Result<Self> {
        let unit = product([micro_batch_size, replicas])?;
        if !global_batch_size.is_multiple_of(unit) {
            return Err(ConfigError::BatchUneven {
                global_batch_size,
                micro_batch_size,
                replicas,
                unit: unit as u128,
                nearest: (global_batch_size as u128).next_multiple_of(unit as u128),
            });
        }
        let num_micro_batch = global_batch_size / unit;
        Ok(Self { global_batch_size, micro_batch_size, num_micro_batch, replicas })
    }
}

fn product([a, b]: [usize; 2]) -> Result<usize> {
    a.checked_mul(b).ok_or(ConfigError::BatchTooLarge { samples: a as u128 * b as u128 })
}

impl Config {
    /// The batch of a step on this many replicas, from `train.global_batch_size`,
    /// `train.micro_batch_size` and `pipeline.num_micro_batch`. The last counts where somebody gave
    /// it ([`is_given`](Self::is_given)).
    ///
    /// # Errors
    ///
    /// See [`Batch::resolve`].
    pub fn batch(&self, replicas: usize) -> Result<Batch> {
        let number = self.is_given("pipeline.num_micro_batch").then_some(self.pipeline.num_micro_batch);
        Batch::resolve(self.train.global_batch_size, self.train.micro_batch_size, number, replicas)
    }

    /// The micro-batches of a step on this many replicas. A sampler that bounds tokens needs no batch size.
    ///
    /// # Errors
    ///
    /// As [`batch`](Self::batch), where a batch size is given.
    pub fn num_micro_batch(&self, replicas: usize) -> Result<usize> {
        match (self.train.global_batch_size, self.train.micro_batch_size) {
            (None, None) => Ok(self.pipeline.num_micro_batch),
            _ => Ok(self.batch(replicas)?.num_micro_batch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(global: usize, micro: usize, number: usize, replicas: usize) -> Batch {
        Batch { global_batch_size: global, micro_batch_size: micro, num_micro_batch: number, replicas }
    }

    #[test]
    fn any_two_give_the_third() {
        let all = sizes(64, 8, 4, 2);
        assert_eq!(Batch::resolve(Some(64), Some(8), None, 2).unwrap(), all);
        assert_eq!(Batch::resolve(Some(64), None, Some(4), 2).unwrap(), all);
        assert_eq!(Batch::resolve(None, Some(8), Some(4), 2).unwrap(), all);
        assert_eq!(Batch::resolve(Some(64), Some(8), Some(4), 2).unwrap(), all);
        assert_eq!(Batch::resolve(Some(64), None, None, 2).unwrap(), sizes(64, 32, 1, 2));
        assert_eq!(Batch::resolve(None, Some(8), None, 2).unwrap(), sizes(16, 8, 1, 2));
    }

    #[test]
    fn a_global_batch_may_be_cut_unevenly() {
        let uneven = Batch::resolve(Some(10), None, Some(2), 2).unwrap();
        assert_eq!(uneven, sizes(10, 3, 2, 2));
        assert!(!uneven.is_even());
        // Fewer samples than pieces: some replicas get none.
        assert_eq!(Batch::resolve(Some(3), None, Some(2), 4).unwrap(), sizes(3, 1, 2, 4));
        assert!(Batch::resolve(Some(12), None, Some(2), 2).unwrap().is_even());
    }

    #[test]
    fn too_large_is_an_error() {
        for (global, micro, number) in
            [(None, Some(usize::MAX), Some(2)), (Some(1), None, Some(usize::MAX)), (Some(usize::MAX), None, Some(2))]
        {
            let error = Batch::resolve(global, micro, number, 4).unwrap_err();
            assert!(matches!(error, ConfigError::BatchTooLarge { .. }), "{error}");
        }
    }
}
