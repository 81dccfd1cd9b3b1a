//! From a global batch to the rows of one micro-batch.

use std::ops::Range;

use epl_comm::shard_range;

use super::sampler::GlobalBatch;
use crate::error::{Error, Result};
use crate::model::context::Context;
use crate::topology::cluster::{BatchPart, device_rows};

/// Cuts `samples` rows: for every replica, for every micro-batch, its rows.
///
/// First over the replicas, then each replica's rows over its micro-batches, both times as evenly as possible, so
/// that replicas differ by at most one sample. With 7 samples, 2 replicas and 3 micro-batches:
///
/// ```text
/// replica 0   0 1 | 2 | 3        replica 1   4 | 5 | 6
/// ```
///
/// Every row is in exactly one range. With fewer samples than replicas × micro-batches some ranges are empty.
///
/// ```
/// assert_eq!(epl_core::data::cut(7, 2, 3), [[0..2, 2..3, 3..4], [4..5, 5..6, 6..7]]);
/// ```
pub fn cut(samples: usize, replicas: usize, micro_batches: usize) -> Vec<Vec<Range<usize>>> {
    let share = |replica| BatchShard { replica, replicas, micro_batches, ..BatchShard::whole() };
    (0..replicas).map(|replica| share(replica).rows(samples)).collect()
}

/// Which rows of every global batch a rank runs, and in how many micro-batches.
///
/// Where stages have different widths, the devices of a stage divide each micro-batch of their replica: with 5 samples,
/// 1 replica and 2 micro-batches
///
/// ```text
/// replicate(2)   0 1 | 3        replicate(1)   0 1 2 | 3 4
///                2   | 4
/// ```
///
/// ```
/// # use epl_core::data::BatchShard;
/// // The second device of a `replicate(2)`, as drawn.
/// let mut shard = BatchShard::new(0, 1, 2)?;
/// (shard.device, shard.devices) = (1, 2);
/// assert_eq!(shard.rows(5), [2..3, 4..5]);
/// // A rank of its own takes what its layout says: `BatchShard::of(epl.context(), 2)`.
/// assert_eq!(BatchShard::whole().rows(5), [0..5]);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShard {
    /// The replica.
    pub replica: usize,
    /// How many replicas there are.
    pub replicas: usize,
    /// How many micro-batches each of them runs a step.
    pub micro_batches: usize,
    /// The device, among those that divide the rows of a micro-batch.
    pub device: usize,
    /// How many devices of the rank's stage do.
    pub devices: usize,
    /// Which part of a batch is the replica's, where replicas have unequal ones.
    pub(crate) part: Option<BatchPart>,
}

impl BatchShard {
    /// The share of one replica.
    ///
    /// # Errors
    ///
    /// When the replica is not one of `replicas`, or there is no micro-batch.
    pub fn new(replica: usize, replicas: usize, micro_batches: usize) -> Result<Self> {
        if replica >= replicas || micro_batches == 0 {
            return Err(Error::invalid(format!(
                "replica {replica} of {replicas} with {micro_batches} micro-batches a step; replicas count from 0, \
                 and a step has at least one micro-batch"
            )));
        }
        Ok(Self { replica, replicas, micro_batches, device: 0, devices: 1, part: None })
    }

    /// The share of the rank that has this context: right under every layout.
    ///
    /// # Errors
    ///
    /// When there is no micro-batch, or `io.row_weights` are not of as many replicas.
    pub fn of(context: &Context, micro_batches: usize) -> Result<Self> {
        let (mesh, rank) = (context.mesh(), context.world().rank());
        let (device, devices) = mesh.device(rank);
        let part = mesh.batch_part(mesh.replica(rank))?;
        Ok(Self { device, devices, part, ..Self::new(mesh.replica(rank), mesh.replicas(), micro_batches)? })
    }

    /// The same with as many rows for each replica, as an evaluation has it.
    pub(super) fn even(self) -> Self {
        Self { part: None, ..self }
    }

    /// A single replica that runs the whole batch at once.
    pub fn whole() -> Self {
        Self { replica: 0, replicas: 1, micro_batches: 1, device: 0, devices: 1, part: None }
    }

    /// This rank's rows of a batch of `samples`, for every micro-batch: its replica's line of [`cut`], or of its
    /// part of `io.row_weights`, divided over the devices.
    pub fn rows(&self, samples: usize) -> Vec<Range<usize>> {
        let even = || shard_range(samples, self.replicas, self.replica);
        let replica = self.part.map_or_else(even, |part| part.rows(samples));
        let of = |index| device_rows(&replica, (self.micro_batches, index), (self.devices, self.device));
        (0..self.micro_batches).map(of).collect()
    }

    /// This rank's rows of a global batch, for every micro-batch: those that the sampler says are its replica's, else
    /// [`rows`](Self::rows).
    ///
    /// # Errors
    ///
    /// When the sampler divides batches over another number of replicas, or itself where there are `io.row_weights`.
    pub fn rows_of(&self, batch: &GlobalBatch) -> Result<Vec<Vec<usize>>> {
        let Some(owned) = &batch.owned else {
            return Ok(self.rows(batch.indices.len()).into_iter().map(Iterator::collect).collect());
        };
        if owned.len() != self.replicas {
            return Err(Error::invalid(format!(
                "the sampler draws for {} replicas, and there are {}; make it from this run's files and context",
                owned.len(),
                self.replicas
            )));
        }
        if self.part.is_some() {
            return Err(Error::invalid(
                "io.row_weights divide a batch over the replicas, and so does the sampler, by their files; leave one of both \
                 out",
            ));
        }
        let own = &owned[self.replica].rows;
        let within = Self { replica: 0, replicas: 1, ..*self };
        Ok(within.rows(own.len()).into_iter().map(|rows| own[rows].to_vec()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sampler::Owned;
    use super::*;
    use crate::topology::cluster::{Routes, Width};
    use proptest::prelude::*;

    #[test]
    fn an_uneven_batch_is_cut_evenly() {
        assert_eq!(cut(7, 2, 3), [[0..2, 2..3, 3..4], [4..5, 5..6, 6..7]]);
        assert_eq!(cut(8, 2, 2), [[0..2, 2..4], [4..6, 6..8]]);
    }

    #[test]
    fn a_small_batch_leaves_micro_batches_and_replicas_empty() {
        assert_eq!(cut(2, 3, 2), [[0..1, 1..1], [1..2, 2..2], [2..2, 2..2]]);
    }

    #[test]
    fn the_last_replica_is_there_and_the_next_is_not() {
        assert!(BatchShard::new(1, 2, 1).is_ok());
        assert!(BatchShard::new(2, 2, 1).unwrap_err().to_string().contains("replica 2 of 2"));
        assert!(BatchShard::new(0, 1, 0).unwrap_err().to_string().contains("0 micro-batches"));
    }

    #[test]
    fn rows_that_belong_to_a_replica_are_cut_there() {
        let own = |rows: &[usize]| Owned { rows: rows.to_vec(), stand_in: 0 };
        let batch = GlobalBatch { owned: Some(vec![own(&[0, 2, 3]), own(&[1])]), ..GlobalBatch::new(0, vec![7; 4]) };
        let rows = |replica, replicas| BatchShard::new(replica, replicas, 2).unwrap().rows_of(&batch);
        assert_eq!(rows(0, 2).unwrap(), [vec![0, 2], vec![3]]);
        assert_eq!(rows(1, 2).unwrap(), [vec![1], vec![]]);
        let device =
            |device| BatchShard { device, devices: 2, ..BatchShard::new(0, 2, 1).unwrap() }.rows_of(&batch).unwrap();
        assert_eq!([device(0), device(1)], [[vec![0, 2]], [vec![3]]]);
        let message = rows(2, 3).unwrap_err().to_string();
        assert!(message.contains("for 2 replicas, and there are 3"), "{message}");
    }

    #[test]
    fn an_unequal_part_is_cut_into_micro_batches() {
        let part = Some(BatchPart::new(&[3, 1], 0));
        let share = BatchShard { part, ..BatchShard::new(0, 2, 2).unwrap() };
        assert_eq!(share.rows(8), [0..3, 3..6]);
        assert_eq!(BatchShard { device: 1, devices: 2, ..share }.rows(8), [2..3, 5..6]);
        assert_eq!(share.even().rows(8), [0..2, 2..4]);
        let own = Owned { rows: vec![0], stand_in: 0 };
        let batch = GlobalBatch { owned: Some(vec![own.clone(), own]), ..GlobalBatch::new(0, vec![7; 4]) };
        assert!(share.rows_of(&batch).unwrap_err().to_string().contains("io.row_weights"));
    }

    proptest! {
        /// However many devices a stage has, those of one replica have the rows of the replica.
        #[test]
        fn devices_divide_a_micro_batch(samples in 0usize..60, replicas in 1usize..4, micro in 1usize..4, devices in 1usize..5) {
            for (replica, whole) in cut(samples, replicas, micro).into_iter().enumerate() {
                let share = BatchShard::new(replica, replicas, micro).unwrap();
                let parts: Vec<_> = (0..devices).map(|device| BatchShard { device, devices, ..share }.rows(samples)).collect();
                for (index, rows) in whole.into_iter().enumerate() {
                    let found: Vec<usize> = parts.iter().flat_map(|part| part[index].clone()).collect();
                    prop_assert_eq!(found, rows.collect::<Vec<_>>());
                }
            }
        }

        /// What stages of different widths are taken to send each other is of the rows that they have.
        #[test]
        fn members_of_stages_have_the_rows_of_their_devices(samples in 0usize..60, micro in 1usize..4, devices in 1usize..5, copies in 1usize..3) {
            let widths = [Width { members: 0..devices * copies, copies }];
            for (replica, weights) in [(0, None), (1, None), (0, Some([2, 1])), (1, Some([2, 1]))] {
                let part = weights.map(|weights| BatchPart::new(&weights, replica));
                let share = BatchShard { part, devices, ..BatchShard::new(replica, 2, micro).unwrap() };
                let whole = part.map_or_else(|| shard_range(samples, 2, replica), |part| part.rows(samples));
                let routes = Routes::of_rows(&whole, micro, &widths);
                for (index, held) in routes.micro_batches() {
                    for (member, held) in held.iter().enumerate() {
                        let own = BatchShard { device: member / copies, ..share }.rows(samples)[index].clone();
                        prop_assert_eq!((held.rows, &held.samples), (own.len().max(1), &own.map(|row| row as u64).collect()));
                    }
                }
            }
        }

        #[test]
        fn every_row_is_run_once_and_replicas_are_balanced(samples in 0usize..200, replicas in 1usize..9, micro in 1usize..9) {
            let cuts = cut(samples, replicas, micro);
            let rows: Vec<usize> = cuts.iter().flatten().cloned().flatten().collect();
            prop_assert_eq!(rows, (0..samples).collect::<Vec<_>>());
            let sizes: Vec<usize> = cuts.iter().map(|replica| replica.iter().map(Range::len).sum()).collect();
            prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
        }
    }
}
