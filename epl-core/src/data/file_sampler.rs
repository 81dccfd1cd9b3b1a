//! Draws from a list of files, which replicas divide among themselves.

use std::sync::Arc;

use rand::seq::SliceRandom;

use super::epoch::{Epochs, generator};
use super::sampler::{GlobalBatch, Owned, Sampler, end_after};
use super::slicing::{FileSlices, starts};
use crate::error::{Error, Result};

/// Configures a [`FileSampler`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSamplerConfig {
    seed: u64,
    global_batch: usize,
    epochs: Option<u64>,
    equal: bool,
}

impl FileSamplerConfig {
    /// Draws `global_batch` samples a step, over all replicas, without end.
    pub fn new(global_batch: usize, seed: u64) -> Self {
        Self { seed, global_batch, epochs: None, equal: false }
    }

    /// Ends the run after so many passes over the files.
    #[must_use]
    pub fn with_epochs(mut self, epochs: u64) -> Self {
        self.epochs = Some(epochs);
        self
    }

    /// Draws as many samples of each file as the shortest one has, in every epoch others. The rest is dropped, and no
    /// replica waits for another.
    #[must_use]
    pub fn with_equal_files(mut self) -> Self {
        self.equal = true;
        self
    }

    /// The sampler over files with so many samples, the same numbers on every rank.
    ///
    /// # Errors
    ///
    /// When these are not the files that were divided, a number is zero, or a replica would have no sample to read.
    pub fn init(self, sizes: &[usize], slices: &FileSlices) -> Result<FileSampler> {
        if sizes.len() != slices.files() {
            return Err(Error::invalid(format!(
                "the sizes of {} files, and {} files are read; give one size for each of them",
                sizes.len(),
                slices.files()
            )));
        }
        if self.global_batch == 0 {
            return Err(Error::invalid("the global batch has 0 samples; it needs at least one"));
        }
        let shortest = sizes.iter().copied().min().unwrap_or(0);
        let drawn = if self.equal { shortest * sizes.len() } else { sizes.iter().sum() };
        if drawn == 0 {
            let shortest = if self.equal { "the shortest of " } else { "" };
            return Err(Error::invalid(format!("there is no sample to draw from {shortest}{} files", sizes.len())));
        }
        let starts = starts(sizes);
        let stand_ins = if slices.is_divided() { stand_ins(sizes, &starts, slices)? } else { Vec::new() };
        let end = self.epochs.map(|epochs| end_after(epochs, drawn)).transpose()?;
        let (sizes, slices) = (sizes.to_vec(), slices.clone());
        Ok(FileSampler { config: self, sizes, starts, slices, stand_ins, drawn, end, epochs: Epochs::new() })
    }
}

/// For each replica, the first sample that it can read.
fn stand_ins(sizes: &[usize], starts: &[usize], slices: &FileSlices) -> Result<Vec<usize>> {
    let find = |replica| {
        let own = |file: &usize| sizes[*file] > 0 && slices.replicas_of(*file).contains(&replica);
        (0..sizes.len()).find(own).map(|file| starts[file]).ok_or_else(|| {
            Error::invalid(format!(
                "the files of replica {replica} of {} have no sample; leave empty files out, or read with fewer replicas",
                slices.replicas()
            ))
        })
    };
    (0..slices.replicas()).map(find).collect()
}

/// Draws one sample of each file in turn. Made by [`FileSamplerConfig`].
///
/// The order of the samples knows no replica: files of 3, 1 and 2 samples, each shuffled, give in every layout
///
/// ```text
/// number    0   1   2   3   4   5
/// sample    a0  b0  c0  a1  c1  a2
/// ```
///
/// Divided over the replicas, it is decided with the file who reads a sample; as the files of a replica are spread over
/// the list, so are its samples over a batch. A step has the next `global_batch` samples, but never more of one replica
/// than its even share (of `b` samples on `r` replicas, `⌈b ÷ r⌉`): the sample that would be one more begins the next
/// step. So with uneven files a step has fewer samples, and in some a replica has none and runs a stand-in that counts for
/// nothing; all replicas end together, and no sample is lost.
///
/// An epoch ends with its last batch, which may be smaller.
///
/// ```
/// use epl_core::data::{FileSamplerConfig, FileSlices, Sampler, SliceRule};
///
/// let slices = FileSlices::new(3, &[1], SliceRule::default())?; // one replica reads all
/// let sampler = FileSamplerConfig::new(2, 7).with_epochs(1).init(&[3, 1, 2], &slices)?;
/// let first = sampler.batch(0)?.indices;
/// assert!(first[0] < 3 && first[1] == 3); // one of the first file, one of the second
/// assert_eq!(sampler.steps(), Some(3));
/// # Ok::<_, epl_core::Error>(())
/// ```
///
/// As the order knows no replica, a run goes on with any number of them, any batch and any division: no sample comes
/// twice in an epoch. But where `io.drop_last_files` drops other files, it is another order.
#[derive(Debug)]
pub struct FileSampler {
    config: FileSamplerConfig,
    sizes: Vec<usize>,
    starts: Vec<usize>,
    slices: FileSlices,
    /// The sample that stands in, of every replica; empty where all read all files.
    stand_ins: Vec<usize>,
    /// How many samples an epoch has.
    drawn: usize,
    end: Option<u64>,
    epochs: Epochs<Vec<usize>>,
}

impl FileSampler {
    /// How many steps an epoch has: as many in each.
    pub fn steps_in_epoch(&self) -> u64 {
        let order = self.epoch(0);
        let (mut offset, mut steps) = (0, 0);
        while offset < order.len() {
            offset += self.owned(&order[offset..]).0;
            steps += 1;
        }
        steps
    }

    /// How many steps there are until the data ends; none if it does not.
    pub fn steps(&self) -> Option<u64> {
        Some(self.config.epochs? * self.steps_in_epoch())
    }

    /// The dataset indices of an epoch, in order.
    fn epoch(&self, epoch: u64) -> Arc<Vec<usize>> {
        self.epochs.get(epoch, || {
            let mut generator = generator(self.config.seed, epoch);
            let mut shuffled = |(start, size): (&usize, &usize)| {
                let mut samples: Vec<usize> = (*start..start + size).collect();
                samples.shuffle(&mut generator);
                samples
            };
            let files: Vec<_> = self.starts.iter().zip(&self.sizes).map(&mut shuffled).collect();
            let mut left: Vec<&Vec<usize>> = files.iter().collect();
            let mut order = Vec::with_capacity(self.drawn);
            for round in 0.. {
                left.retain(|file| file.len() > round);
                if left.is_empty() || order.len() >= self.drawn {
                    break;
                }
                order.extend(left.iter().map(|file| file[round]));
            }
            order
        })
    }

    /// How many of the samples `rest` the next batch has, and whose they are.
    fn owned(&self, rest: &[usize]) -> (usize, Option<Vec<Owned>>) {
        let samples = rest.len().min(self.config.global_batch);
        if !self.slices.is_divided() {
            return (samples, None);
        }
        let most = self.config.global_batch.div_ceil(self.slices.replicas());
        let none = |stand_in: &usize| Owned { rows: Vec::new(), stand_in: *stand_in };
        let mut owned: Vec<Owned> = self.stand_ins.iter().map(none).collect();
        for (row, sample) in rest[..samples].iter().enumerate() {
            // The last file that begins there or before: an empty one begins where the next does.
            let file = self.starts.partition_point(|start| start <= sample) - 1;
            let least = self.slices.replicas_of(file).min_by_key(|replica| owned[*replica].rows.len());
            match least.filter(|replica| owned[*replica].rows.len() < most) {
                Some(replica) => owned[replica].rows.push(row),
                None => return (row, Some(owned)),
            }
        }
        (samples, Some(owned))
    }
}

impl Sampler for FileSampler {
    fn samples(&self) -> usize {
        self.sizes.iter().sum()
    }

    fn batch(&self, position: u64) -> Result<GlobalBatch> {
        let drawn = self.drawn as u64;
        let (order, offset) = (self.epoch(position / drawn), (position % drawn) as usize);
        let (samples, owned) = self.owned(&order[offset..]);
        Ok(GlobalBatch { first: position, indices: order[offset..offset + samples].to_vec(), owned })
    }

    fn order(&self) -> String {
        // FNV-1a over the sizes: they decide which sample comes when.
        let mix = |sum: u64, size: &usize| (sum ^ *size as u64).wrapping_mul(0x0000_0100_0000_01b3);
        let checksum = self.sizes.iter().fold(0xcbf2_9ce4_8422_2325, mix);
        format!(
            "{} samples of {} files (checksum of their sizes {checksum:016x}) in turn{}, shuffled with seed {}",
            self.samples(),
            self.sizes.len(),
            if self.config.equal { ", as many of each" } else { "" },
            self.config.seed,
        )
    }

    fn end(&self) -> Option<u64> {
        self.end
    }

    fn divides_files(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::slicing::SliceRule;
    use super::*;

    fn sampler(sizes: &[usize], readers: &[usize], config: FileSamplerConfig) -> FileSampler {
        let rule = SliceRule { unbalanced: true, drop_last: false };
        config.init(sizes, &FileSlices::new(sizes.len(), readers, rule).unwrap()).unwrap()
    }

    /// All batches until the data ends.
    fn batches(sampler: &FileSampler) -> Vec<GlobalBatch> {
        let (mut position, mut batches) = (0, Vec::new());
        while position < sampler.end().unwrap() {
            batches.push(sampler.batch(position).unwrap());
            position = batches[batches.len() - 1].end();
        }
        batches
    }

    fn once(batch: usize) -> FileSamplerConfig {
        FileSamplerConfig::new(batch, 5).with_epochs(1)
    }

    fn indices(batches: &[GlobalBatch]) -> Vec<usize> {
        batches.iter().flat_map(|batch| batch.indices.clone()).collect()
    }

    #[test]
    fn files_come_in_turn_in_every_layout() {
        let sizes = [3, 1, 2];
        let expected = indices(&batches(&sampler(&sizes, &[1], once(2))));
        let files: Vec<usize> = expected.iter().map(|index| [0, 0, 0, 1, 2, 2][*index]).collect();
        assert_eq!(files, [0, 1, 2, 0, 2, 0]);
        for (readers, batch) in [(&[1, 1][..], 2), (&[1, 1, 1], 6), (&[2, 1], 3), (&[1, 1], 1), (&[3], 7)] {
            assert_eq!(indices(&batches(&sampler(&sizes, readers, once(batch)))), expected, "{readers:?} {batch}");
        }
    }

    #[test]
    fn a_replica_runs_no_more_than_its_share_and_only_its_own() {
        for (sizes, readers, batch) in
            [(&[10, 10, 10, 40][..], &[1, 1, 1, 1][..], 8), (&[4, 9, 2, 7, 5], &[1, 1], 5), (&[8, 1, 6], &[4, 2], 7)]
        {
            let sampler = sampler(sizes, readers, once(batch));
            let starts = starts(sizes);
            for drawn in batches(&sampler) {
                let owned = drawn.owned.as_ref().unwrap();
                let mut rows: Vec<usize> = owned.iter().flat_map(|owned| owned.rows.clone()).collect();
                rows.sort_unstable();
                assert_eq!(rows, (0..drawn.indices.len()).collect::<Vec<_>>());
                for (replica, owned) in owned.iter().enumerate() {
                    assert!(owned.rows.len() <= batch.div_ceil(readers.iter().sum()));
                    let read = owned.rows.iter().map(|row| drawn.indices[*row]).chain([owned.stand_in]);
                    for index in read {
                        let file = starts.partition_point(|start| *start <= index) - 1;
                        assert!(sampler.slices.replicas_of(file).contains(&replica), "{index} on {replica}");
                    }
                }
            }
        }
    }

    #[test]
    fn even_files_fill_every_step() {
        let sampler = sampler(&[6; 4], &[1, 1], once(4));
        let batches = batches(&sampler);
        assert_eq!((batches.len(), sampler.steps()), (6, Some(6)));
        assert!(batches.iter().all(|batch| batch.owned.as_ref().unwrap().iter().all(|owned| owned.rows.len() == 2)));
    }

    #[test]
    fn equal_files_leave_nobody_waiting_and_drop_others_in_every_epoch() {
        let sampler = sampler(&[3, 9], &[1, 1], FileSamplerConfig::new(2, 5).with_epochs(2).with_equal_files());
        let batches = batches(&sampler);
        assert_eq!((batches.len(), sampler.end(), sampler.samples()), (6, Some(12), 12));
        assert!(batches.iter().all(|batch| batch.owned.as_ref().unwrap().iter().all(|owned| owned.rows.len() == 1)));
        let long =
            |batches: &[GlobalBatch]| indices(batches).into_iter().filter(|index| *index >= 3).collect::<Vec<_>>();
        assert_ne!(long(&batches[..3]), long(&batches[3..]));
    }

    #[test]
    fn epochs_differ_and_each_has_all_samples() {
        let sampler = sampler(&[4, 5, 3], &[1, 1], FileSamplerConfig::new(3, 5).with_epochs(2));
        let drawn = indices(&batches(&sampler));
        let (first, second) = drawn.split_at(12);
        assert_ne!(first, second);
        for epoch in [first, second] {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..12).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_order_tells_sizes_and_seed_apart_and_not_layouts() {
        let order = |sizes: &[usize], readers: &[usize], config| sampler(sizes, readers, config).order();
        let config = FileSamplerConfig::new(4, 5);
        let expected = order(&[2, 3], &[1, 1], config.clone());
        assert_eq!(order(&[2, 3], &[2], config.clone().with_epochs(3)), expected);
        assert_ne!(order(&[3, 2], &[1, 1], config.clone()), expected);
        assert_ne!(order(&[2, 3], &[1, 1], config.clone().with_equal_files()), expected);
        assert_ne!(order(&[2, 3], &[1, 1], FileSamplerConfig::new(4, 6)), expected);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let slices = FileSlices::new(2, &[1, 1], SliceRule::default()).unwrap();
        let refused = |config: FileSamplerConfig, sizes: &[usize]| config.init(sizes, &slices).unwrap_err().to_string();
        let config = FileSamplerConfig::new(4, 5);
        assert!(refused(config.clone(), &[1]).contains("1 files, and 2 files"));
        assert!(refused(FileSamplerConfig::new(0, 5), &[1, 1]).contains("0 samples"));
        assert!(refused(config.clone(), &[0, 0]).contains("from 2 files"));
        assert!(refused(config.clone(), &[3, 0]).contains("replica 1 of 2 have no sample"));
        assert!(refused(config.clone().with_equal_files(), &[3, 0]).contains("from the shortest of 2 files"));
        assert!(refused(config.with_epochs(0), &[1, 1]).contains("0 epochs"));
    }
}
