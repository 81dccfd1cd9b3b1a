//! What a step trains on does not depend on who runs it, and what fails on the loading thread comes out at the step.
#![allow(clippy::unwrap_used)] // Also in the functions that the tests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::tensor::Device;
use epl_core::data::{
    BatchShard, EvaluationLoader, FileSamplerConfig, FileSlices, LengthSamplerConfig, Loader, SampleBatcher, Sampler,
    Samples, ShuffledSampler, SliceRule, TrainData, ValidData,
};

/// Keeps the items as they are.
struct Items;

impl Batcher<usize, Vec<usize>> for Items {
    fn batch(&self, items: Vec<usize>, _device: &Device) -> Vec<usize> {
        items
    }
}

/// A dataset of squares, so that an index is not mistaken for an item.
fn squares(samples: usize) -> InMemDataset<usize> {
    InMemDataset::new((0..samples).map(|index| index * index).collect())
}

fn shuffled(samples: usize, global_batch: usize) -> TrainData<usize, Vec<usize>> {
    TrainData::new(squares(samples), Items, ShuffledSampler::new(samples, global_batch, 5).unwrap()).unwrap()
}

fn by_length(samples: usize, tokens: usize) -> TrainData<usize, Vec<usize>> {
    let lengths = (0..samples).map(|index| 1 + index % 7).collect();
    let sampler = LengthSamplerConfig::new(5).with_max_tokens(tokens).init(lengths).unwrap();
    TrainData::new(squares(samples), Items, sampler).unwrap()
}

/// For every step, what all replicas run together: (sample number, item), in order; stand-ins left out.
fn run(
    data: &TrainData<usize, Vec<usize>>,
    (replicas, micro_batches): (usize, usize),
    (position, steps): (u64, usize),
) -> Vec<Vec<(u64, usize)>> {
    let mut rows = vec![Vec::new(); steps];
    for replica in 0..replicas {
        let share = BatchShard::new(replica, replicas, micro_batches).unwrap();
        let mut loader = Loader::start(data, share, &Device::flex(), position).unwrap();
        for rows in &mut rows {
            let step = loader.next_step().unwrap();
            assert_eq!(step.micro_batches.len(), micro_batches);
            for micro_batch in step.micro_batches {
                assert_eq!(micro_batch.batch.len(), micro_batch.samples.len());
                assert!(!micro_batch.batch.is_empty());
                if !micro_batch.empty {
                    rows.extend(micro_batch.samples.iter().copied().zip(micro_batch.batch));
                }
            }
        }
    }
    rows
}

const LAYOUTS: [(usize, usize); 7] = [(1, 1), (1, 4), (2, 1), (3, 1), (3, 2), (4, 1), (4, 4)];

#[test]
fn no_layout_changes_what_a_step_trains_on() {
    // 23 samples and batches of 5: uneven cuts, and epoch borders inside batches.
    for data in [shuffled(23, 5), by_length(23, 20)] {
        let reference = run(&data, (1, 1), (0, 12));
        for layout in LAYOUTS {
            assert_eq!(run(&data, layout, (0, 12)), reference, "{layout:?}");
        }
    }
}

#[test]
fn every_draw_has_a_sample_number_of_its_own() {
    for data in [shuffled(23, 5), by_length(23, 20)] {
        let numbers: Vec<u64> = run(&data, (3, 2), (0, 12)).into_iter().flatten().map(|(number, _)| number).collect();
        assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    }
}

#[test]
fn a_run_goes_on_from_its_position_under_any_layout() {
    for data in [shuffled(23, 5), by_length(23, 20)] {
        let whole = run(&data, (2, 1), (0, 12));
        let position = whole[..7].iter().flatten().count() as u64;
        for layout in LAYOUTS {
            assert_eq!(run(&data, layout, (position, 5)), whole[7..], "{layout:?}");
        }
    }
}

#[test]
fn the_loader_tells_where_a_resumed_run_goes_on() {
    let data = by_length(23, 20);
    let mut loader = Loader::start(&data, BatchShard::whole(), &Device::flex(), 0).unwrap();
    let mut drawn = 0;
    for _ in 0..12 {
        let step = loader.next_step().unwrap();
        drawn += step.samples as u64;
        assert_eq!(step.position, drawn);
    }
}

#[test]
fn a_replica_without_a_sample_gets_the_first_one_as_a_stand_in() {
    let data = shuffled(23, 2);
    let first = run(&data, (1, 1), (4, 1))[0][0];
    for replica in [2, 3] {
        let share = BatchShard::new(replica, 4, 2).unwrap();
        let step = Loader::start(&data, share, &Device::flex(), 4).unwrap().next_step().unwrap();
        for stand_in in step.micro_batches {
            assert!(stand_in.empty);
            assert_eq!((stand_in.samples[0], stand_in.batch[0]), first);
            assert_eq!(stand_in.batch.len(), 1);
        }
    }
}

#[test]
fn a_position_that_no_batch_begins_at_is_refused_at_once() {
    let message = Loader::start(&by_length(23, 20), BatchShard::whole(), &Device::flex(), 1).unwrap_err().to_string();
    assert!(message.contains("no batch begins after 1 samples"), "{message}");
}

#[test]
fn a_sampler_of_another_dataset_is_refused() {
    let sampler = ShuffledSampler::new(22, 5, 0).unwrap();
    let message = TrainData::new(squares(23), Items, sampler).err().unwrap().to_string();
    assert!(message.contains("22 samples") && message.contains("has 23"), "{message}");
}

/// Fails to read one index.
struct Broken(usize);

impl Dataset<usize> for Broken {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        if index == self.0 {
            return Err(DatasetError::new(std::io::Error::other("the disk is gone")));
        }
        Ok(index)
    }

    fn len(&self) -> usize {
        10
    }
}

#[test]
fn an_unreadable_sample_is_an_error_at_its_step() {
    let sampler = ShuffledSampler::new(10, 1, 3).unwrap();
    let bad = sampler.batch(6).unwrap().indices[0];
    let data = TrainData::new(Broken(bad), Items, sampler).unwrap();
    let mut loader = Loader::start(&data, BatchShard::whole(), &Device::flex(), 0).unwrap();
    for _ in 0..6 {
        loader.next_step().unwrap();
    }
    let message = loader.next_step().unwrap_err().to_string();
    assert!(message.contains("the disk is gone") && message.contains(&format!("[{bad}]")), "{message}");
    assert!(loader.next_step().is_err(), "it stays an error");
}

/// Panics at its third batch, and counts.
struct Panics(Arc<AtomicUsize>);

impl Batcher<usize, Vec<usize>> for Panics {
    fn batch(&self, items: Vec<usize>, _device: &Device) -> Vec<usize> {
        assert!(self.0.fetch_add(1, Ordering::SeqCst) < 2, "a row has no label");
        items
    }
}

#[test]
fn a_batcher_that_panics_is_an_error_at_its_step() {
    let sampler = ShuffledSampler::new(10, 2, 3).unwrap();
    let data = TrainData::new(squares(10), Panics(Arc::default()), sampler).unwrap();
    let mut loader = Loader::start(&data, BatchShard::whole(), &Device::flex(), 0).unwrap();
    loader.next_step().unwrap();
    loader.next_step().unwrap();
    let message = loader.next_step().unwrap_err().to_string();
    assert!(message.contains("a row has no label"), "{message}");
}

/// Takes a while for every batch, much longer than a thread waits for its turn; whoever holds the other end sees when it is gone.
struct Slow(#[allow(dead_code)] Arc<()>);

impl Batcher<usize, Vec<usize>> for Slow {
    fn batch(&self, items: Vec<usize>, _device: &Device) -> Vec<usize> {
        std::thread::sleep(Duration::from_millis(300));
        items
    }
}

#[test]
fn a_dropped_loader_ends_its_thread_soon() {
    let alive = Arc::new(());
    let data = TrainData::new(squares(10), Slow(alive.clone()), ShuffledSampler::new(10, 2, 3).unwrap()).unwrap();
    let mut loader = Loader::start(&data, BatchShard::whole(), &Device::flex(), 0).unwrap();
    assert!(loader.next_step().unwrap().waited >= Duration::from_millis(1));
    drop(data);
    let start = Instant::now();
    drop(loader);
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(Arc::strong_count(&alive), 1, "nothing of the thread is left");
}

#[test]
fn evaluation_runs_every_sample_once_and_the_same_number_of_batches_everywhere() {
    for (samples, batch) in [(10, 3), (12, 3), (1, 4), (7, 1), (13, 2)] {
        for replicas in 1..=4 {
            let data = ValidData::new(squares(samples), Items, batch).unwrap();
            let mut seen = Vec::new();
            let mut rounds = Vec::new();
            for replica in 0..replicas {
                let share = BatchShard::new(replica, replicas, 5).unwrap();
                let loader = EvaluationLoader::start(&data, share, &Device::flex()).unwrap();
                rounds.push(loader.rounds());
                let batches: Vec<_> = loader.map(Result::unwrap).collect();
                assert_eq!(batches.len(), rounds[0]);
                assert!(batches.iter().all(|batch| !batch.batch.is_empty()));
                seen.extend(batches.into_iter().filter(|batch| !batch.empty).flat_map(|batch| batch.batch));
            }
            assert!(rounds.iter().all(|round| *round == rounds[0]));
            seen.sort_unstable();
            assert_eq!(seen, (0..samples).map(|index| index * index).collect::<Vec<_>>());
        }
    }
}

#[test]
fn evaluation_of_nothing_is_refused() {
    assert!(ValidData::new(squares(0), Items, 2).err().unwrap().to_string().contains("0 samples"));
    assert!(ValidData::new(squares(2), Items, 0).err().unwrap().to_string().contains("0 at a time"));
}

/// Says of each row its number, its item, and those of its partner, which stands so many rows before it.
struct Beside(usize);

type Row = ((u64, usize), (u64, usize));

impl SampleBatcher<usize, Vec<Row>> for Beside {
    fn partner(&self) -> Option<usize> {
        Some(self.0)
    }

    fn batch_samples(&self, samples: Samples<usize>, _device: &Device) -> epl_core::Result<Vec<Row>> {
        let of = |place: usize| (samples.all[place].number, samples.all[place].item);
        assert!(samples.all.iter().all(|sample| sample.number >= samples.first));
        Ok(samples.partners.iter().enumerate().map(|(row, partner)| (of(row), of(*partner))).collect())
    }
}

#[test]
fn a_partner_is_that_of_the_global_batch() {
    let sampler = || ShuffledSampler::new(11, 5, 2).unwrap();
    for distance in [1, 3] {
        let data = TrainData::of_samples(squares(11), Beside(distance), sampler()).unwrap();
        for (replicas, micro_batches) in LAYOUTS {
            let mut rows = Vec::new();
            for replica in 0..replicas {
                let share = BatchShard::new(replica, replicas, micro_batches).unwrap();
                let mut loader = Loader::start(&data, share, &Device::flex(), 10).unwrap();
                let step = loader.next_step().unwrap().micro_batches;
                rows.extend(step.into_iter().filter(|micro| !micro.empty).flat_map(|micro| micro.batch));
            }
            let drawn = sampler().batch(10).unwrap();
            let of = |row: usize| (10 + row as u64, drawn.indices[row].pow(2));
            let expected: Vec<Row> = (0..5).map(|row| (of(row), of((row + 5 - distance) % 5))).collect();
            assert_eq!(rows, expected, "{replicas} replicas, {micro_batches} micro-batches");
        }
    }
}

#[test]
fn partners_that_a_replica_may_not_read_are_refused() {
    let refused = ValidData::of_samples(squares(4), Beside(1), 2).err().unwrap().to_string();
    assert!(refused.contains("would depend on the layout"), "{refused}");
    let slices = FileSlices::new(4, &[1, 1], SliceRule::default()).unwrap();
    let sampler = FileSamplerConfig::new(4, 3).init(&[2; 4], &slices).unwrap();
    let refused = TrainData::of_samples(squares(8), Beside(1), sampler).err().unwrap().to_string();
    assert!(
        refused.contains("the sampler divides files, which not every replica reads: leave mixing out"),
        "{refused}"
    );
}
