//! A position is a count of samples: whoever goes on from it, in whatever batches, draws what is left of the epoch.
#![allow(clippy::unwrap_used)] // Also in the functions that the tests share.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::tensor::Device;
use epl_core::data::{
    BatchShard, FileSamplerConfig, FileSlices, LengthSamplerConfig, Loader, PrefetchConfig, Sampler, ShuffledSampler,
    SliceRule, TrainData,
};
use proptest::prelude::*;

/// Keeps the items, which are their own indices.
struct Items;

impl Batcher<usize, Vec<usize>> for Items {
    fn batch(&self, items: Vec<usize>, _device: &Device) -> Vec<usize> {
        items
    }
}

/// How a part of a run is set up, and how many steps it makes.
#[derive(Clone, Copy, Debug)]
struct Part {
    replicas: usize,
    micro_batches: usize,
    batch: usize,
    steps: usize,
    threads: usize,
}

fn part() -> impl Strategy<Value = Part> {
    (1usize..5, 1usize..4, 1usize..9, 1usize..7, 1usize..4).prop_map(
        |(replicas, micro_batches, batch, steps, threads)| Part { replicas, micro_batches, batch, steps, threads },
    )
}

/// What all replicas run of one part from `position` on, as (sample number, index), and where it ends. Every replica
/// makes the same steps.
fn run_part(sampler: &dyn Fn(&Part) -> Box<dyn Sampler>, part: &Part, position: u64) -> (Vec<(u64, usize)>, u64) {
    let (mut drawn, mut ends) = (Vec::new(), Vec::new());
    for replica in 0..part.replicas {
        let sampler = sampler(part);
        let dataset = InMemDataset::new((0..sampler.samples()).collect());
        let data = TrainData::new(dataset, Items, sampler).unwrap();
        let share = BatchShard::new(replica, part.replicas, part.micro_batches).unwrap();
        let ahead = PrefetchConfig::new(part.threads, 2).unwrap();
        let loader = Loader::start_ahead(&data, share, &Device::flex(), position, ahead).unwrap();
        let mut end = position;
        for step in loader.take(part.steps).map(Result::unwrap) {
            assert_eq!(step.micro_batches.len(), part.micro_batches);
            end = step.position;
            for micro_batch in step.micro_batches.into_iter().filter(|micro_batch| !micro_batch.empty) {
                assert_eq!(micro_batch.samples.len(), micro_batch.batch.len());
                drawn.extend(micro_batch.samples.iter().copied().zip(micro_batch.batch));
            }
        }
        ends.push(end);
    }
    assert!(ends.iter().all(|end| *end == ends[0]), "replicas end together: {ends:?}");
    drawn.sort_unstable();
    (drawn, ends[0])
}

/// Runs all parts, each from where the one before ended, then one that goes on to the end of the data, and checks that
/// each of `epochs` epochs had every sample once, with numbers of their own.
fn check(sampler: &dyn Fn(&Part) -> Box<dyn Sampler>, parts: &[Part], epochs: u64) {
    let last = Part { steps: usize::MAX, ..parts[0] };
    let (mut position, mut drawn) = (0, Vec::new());
    for part in parts.iter().chain([&last]) {
        let (rows, end) = run_part(sampler, part, position);
        (position, drawn) = (end, [drawn, rows].concat());
    }
    let samples = sampler(&last).samples();
    let numbers: Vec<u64> = drawn.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..epochs * samples as u64).collect::<Vec<_>>(), "each number once, none left out");
    for epoch in drawn.chunks(samples) {
        let mut indices: Vec<usize> = epoch.iter().map(|(_, index)| *index).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..samples).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn shuffled_samples_in_other_batches_on_other_ranks(
        samples in 1usize..40,
        epochs in 1u64..4,
        parts in prop::collection::vec(part(), 1..5),
    ) {
        let sampler = |part: &Part| {
            let sampler = ShuffledSampler::new(samples, part.batch, 3).unwrap();
            Box::new(sampler.with_epochs(epochs).unwrap()) as Box<dyn Sampler>
        };
        check(&sampler, &parts, epochs);
    }

    #[test]
    fn batches_by_length_on_other_ranks(
        lengths in prop::collection::vec(1usize..9, 1..40),
        epochs in 1u64..4,
        parts in prop::collection::vec(part(), 1..5),
    ) {
        let sampler = |_: &Part| {
            let config = LengthSamplerConfig::new(3).with_max_tokens(20).with_epochs(epochs);
            Box::new(config.init(lengths.clone()).unwrap()) as Box<dyn Sampler>
        };
        check(&sampler, &parts, epochs);
    }

    #[test]
    fn files_in_other_batches_on_other_ranks_however_they_are_divided(
        sizes in prop::collection::vec(1usize..12, 1..9),
        epochs in 1u64..4,
        unbalanced in any::<bool>(),
        parts in prop::collection::vec(part(), 1..5),
    ) {
        let sampler = |part: &Part| {
            let rule = SliceRule { unbalanced, drop_last: false };
            let slices = FileSlices::new(sizes.len(), &vec![1; part.replicas], rule).unwrap();
            let config = FileSamplerConfig::new(part.batch, 3).with_epochs(epochs);
            Box::new(config.init(&sizes, &slices).unwrap()) as Box<dyn Sampler>
        };
        check(&sampler, &parts, epochs);
    }
}

/// Another bound would draw in another order, so that a run that goes on with it is refused: its order is another.
#[test]
fn another_bound_on_lengths_is_another_order() {
    let sampler = |config: LengthSamplerConfig| config.init((0..30).map(|sample| 1 + sample % 7).collect()).unwrap();
    let (saved, now) =
        (LengthSamplerConfig::new(3).with_max_tokens(20), LengthSamplerConfig::new(3).with_max_tokens(30));
    assert_ne!(sampler(saved.clone()).order(), sampler(now.clone()).order());
    let position = sampler(saved.clone()).batch(0).unwrap().end();
    let message = sampler(now).batch(position).unwrap_err().to_string();
    assert!(message.contains("at most 30 tokens"), "{message}");
    // The number of epochs is no part of it.
    assert_eq!(sampler(saved.clone()).order(), sampler(saved.with_epochs(2)).order());
}

/// As is another number of files: here the last of them is dropped on two replicas, and none on three.
#[test]
fn files_that_are_dropped_are_another_order() {
    let order = |replicas: usize| {
        let slices = FileSlices::new(3, &vec![1; replicas], SliceRule { unbalanced: false, drop_last: true }).unwrap();
        FileSamplerConfig::new(4, 3).init(&[5; 3][..slices.files()], &slices).unwrap().order()
    };
    assert_eq!(order(3), order(1));
    assert!(order(2).contains("10 samples of 2 files") && order(3).contains("15 samples of 3 files"));
}

#[test]
fn the_end_of_the_data_is_an_end_and_asked_again_an_error() {
    let sampler = ShuffledSampler::new(5, 2, 3).unwrap().with_epochs(1).unwrap();
    let data = TrainData::new(InMemDataset::new((0..5).collect()), Items, sampler).unwrap();
    let mut loader = Loader::start(&data, BatchShard::whole(), &Device::flex(), 0).unwrap();
    assert_eq!(loader.by_ref().map(|step| step.unwrap().samples).collect::<Vec<_>>(), [2, 2, 1]);
    let message = loader.next_step().unwrap_err().to_string();
    assert!(message.contains("ended after 5 samples"), "{message}");
    for position in [5, 9] {
        assert!(Loader::start(&data, BatchShard::whole(), &Device::flex(), position).unwrap().next().is_none());
    }
}

#[test]
fn a_sampler_for_other_replicas_is_refused_at_once() {
    let slices = FileSlices::new(4, &[1, 1], SliceRule::default()).unwrap();
    let sampler = FileSamplerConfig::new(4, 3).init(&[2; 4], &slices).unwrap();
    let data = TrainData::new(InMemDataset::new((0..8).collect()), Items, sampler).unwrap();
    let share = BatchShard::new(0, 3, 1).unwrap();
    let message = Loader::start(&data, share, &Device::flex(), 0).unwrap_err().to_string();
    assert!(message.contains("for 2 replicas, and there are 3"), "{message}");
}
