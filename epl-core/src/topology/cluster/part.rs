//! Which part of a batch is whose.

use std::ops::Range;

use epl_comm::shard_range;

/// The rows of a device in a micro-batch, of those of its replica: these are cut into so many micro-batches, and each over so many
/// devices, both times as evenly as possible.
pub(crate) fn device_rows(
    replica: &Range<usize>,
    (micro_batches, index): (usize, usize),
    (devices, device): (usize, usize),
) -> Range<usize> {
    let part = |rows: &Range<usize>, parts: usize, index: usize| {
        let own = shard_range(rows.len(), parts, index);
        rows.start + own.start..rows.start + own.end
    };
    part(&part(replica, micro_batches, index), devices, device)
}

/// The part of a batch that one replica runs, of replicas that divide it in some proportion. With 7 samples and the proportion 2 : 1
///
/// ```text
/// replica 0   0 1 2 3 4        replica 1   5 6
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchPart {
    /// Weights of the replicas before this one together, of this one, and of all.
    weights: [u128; 3],
}

impl BatchPart {
    /// The part of one replica, in a proportion that gives some of them a row.
    ///
    /// # Panics
    ///
    /// When there is no such replica.
    pub fn new(weights: &[usize], replica: usize) -> Self {
        let sum = |weights: &[usize]| weights.iter().map(|weight| *weight as u128).sum();
        Self { weights: [sum(&weights[..replica]), weights[replica] as u128, sum(weights)] }
    }

    /// Its rows of a batch of so many, between the nearest whole ones.
    pub fn rows(self, samples: usize) -> Range<usize> {
        let [before, own, all] = self.weights;
        let until = |weight: u128| ((2 * samples as u128 * weight + all) / (2 * all).max(1)) as usize;
        until(before)..until(before + own)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(weights: &[usize], samples: usize) -> Vec<Range<usize>> {
        (0..weights.len()).map(|replica| BatchPart::new(weights, replica).rows(samples)).collect()
    }

    #[test]
    fn rows_are_divided_in_a_proportion() {
        assert_eq!(rows(&[10, 5], 15), [0..10, 10..15]);
        assert_eq!(rows(&[2, 1], 7), [0..5, 5..7]);
        assert_eq!(rows(&[1, 0, 3], 4), [0..1, 1..1, 1..4]);
        assert_eq!(rows(&[usize::MAX, usize::MAX], 9), [0..5, 5..9]);
    }

    proptest! {
        #[test]
        fn every_row_is_of_one_replica(samples in 0usize..300, weights in proptest::collection::vec(0usize..20, 1..7)) {
            let all: usize = weights.iter().sum();
            prop_assume!(all > 0);
            let mut next = 0;
            for (rows, weight) in rows(&weights, samples).into_iter().zip(&weights) {
                prop_assert_eq!(rows.start, next);
                let exact = (samples * weight) as f64 / all as f64;
                prop_assert!((rows.len() as f64 - exact).abs() <= 1.0);
                next = rows.end;
            }
            prop_assert_eq!(next, samples);
        }
    }
}
