//! Images of two classes: the layout changes nothing, and the loss is that of either class by its share. In f64.

use std::ops::Range;

use burn::optim::SgdConfig;
use burn::tensor::Device;
use epl_core::{Config, Engine, EngineSettings, MicroBatch, launch, testing};
use epl_models::resnet::ResNetLayer;
use epl_models::vision::{IGNORED, ImageBatch};
use epl_models::{ResMlpConfig, ResNetConfig};
use epl_modules::SplitClassifierConfig;

use super::resnet::{CLASSES, Outcome, assert_same, batch, train_with};

const SIZE: usize = 8;
const ROWS: usize = 7;

/// Every fourth image does not count; one has its own class twice, and one no share of its own.
fn mixed(rows: Range<usize>, device: &Device) -> ImageBatch {
    let others = rows.clone().map(|row| (row * 5 % CLASSES) as i64).collect();
    let shares = rows.clone().map(|row| [0.7, 0.25, 0.0, 1.0, 0.55][row % 5]).collect();
    batch(rows, [SIZE; 2], device).mixed_with(others, shares)
}

fn resmlp() -> ResMlpConfig {
    let config = ResMlpConfig::new(CLASSES).with_image_size(SIZE).with_patch_size(4).with_d_model(6).with_d_ff(9);
    config.with_layers(1).with_deviation(0.3).with_label_smoothing(0.1)
}

fn resnet() -> ResNetConfig {
    let config = ResNetConfig::new(CLASSES).with_layer(ResNetLayer::Basic).with_embedding_size(4);
    config.with_hidden_sizes(vec![6]).with_depths(vec![1]).with_label_smoothing(0.1)
}

fn outcome(options: &Config, split: bool, micro_batches: usize) -> Outcome {
    let outcomes = launch(options, |epl| match split {
        true => train_with(epl.build(|at| resmlp().init_split(at))?, (ROWS, micro_batches), mixed),
        false => train_with(epl.build(|at| resmlp().init(at))?, (ROWS, micro_batches), mixed),
    });
    outcomes.unwrap_or_else(|error| panic!("{error}")).pop().expect("there is a last rank")
}

#[test]
fn any_layout_equals_one_rank() {
    epl_testing::in_f64(|| {
        let one = outcome(&testing::config(1, 1, 1), false, 1);
        for (data, tensor, split, micro_batches) in
            [(1, 2, true, 1), (1, 2, false, 1), (3, 1, false, 2), (2, 2, true, 1)]
        {
            let found = outcome(&testing::config(data, tensor, 1), split, micro_batches);
            assert_same(&found, &one, &format!("data {data}, tensor {tensor}, {split}, {micro_batches} micro-batches"));
        }
    });
}

/// Classes that are split over the ranks which each run other rows: labels and shares cross the bridge.
#[test]
fn classes_behind_a_bridge() {
    epl_testing::in_f64(|| {
        let classes = SplitClassifierConfig::new(resnet().features(), CLASSES);
        let one = launch(&testing::config(1, 1, 1), |epl| {
            train_with(epl.build(|at| resnet().init_with(at, |at| classes.init(at)))?, (ROWS, 1), mixed)
        });
        let one = one.unwrap_or_else(|error| panic!("{error}")).remove(0);
        let mut options = testing::config(3, 1, 1);
        options.cluster.colocate_split_and_replicate = true;
        (options.dist.data_parallel_size, options.cluster.ranks) = (None, Some(3));
        let all = launch(&options, |epl| train_with(epl.build(|at| resnet().init_colocated(3, at))?, (ROWS, 1), mixed));
        for outcome in all.unwrap_or_else(|error| panic!("{error}")) {
            assert_same(&outcome, &one, "three ranks");
        }
    });
}

/// The loss and each gradient are those of a batch of the first classes and one of the second, row by row.
#[test]
fn a_mixture_counts_by_its_shares() {
    epl_testing::in_f64(|| {
        let check = launch(&testing::config(1, 1, 1), |epl| {
            let engine = Engine::new(epl.build(|at| resmlp().init(at))?, &SgdConfig::new(), EngineSettings::default())?;
            let device = engine.device();
            let row = |batch: ImageBatch| engine.gradients(vec![MicroBatch::new(batch, vec![0])]);
            for index in [0, 1, 2, 4] {
                let (own, other) = (index * 3 % CLASSES, index * 5 % CLASSES);
                let share = [0.7, 0.25, 0.0, 1.0, 0.55][index];
                let of = |class: usize| {
                    ImageBatch::new(batch(index..index + 1, [SIZE; 2], device).pixels, vec![class as i64])
                };
                let (found, first, second) = (row(mixed(index..index + 1, device))?, row(of(own))?, row(of(other))?);
                let expected = share * first.0.loss + (1.0 - share) * second.0.loss;
                assert!((found.0.loss - expected).abs() < 1e-12, "row {index}: {} and {expected}", found.0.loss);
                for (name, gradient) in &found.1 {
                    let parts = first.1[name].iter::<f64>().zip(second.1[name].iter::<f64>());
                    let expected = parts.map(|(first, second)| share * first + (1.0 - share) * second);
                    let worst = epl_testing::largest(gradient.iter::<f64>().zip(expected).map(|(a, b)| (a - b).abs()));
                    assert!(worst < 1e-12, "row {index}: {worst:e} in {name}");
                }
            }
            // What does not count has no second class that is looked at.
            let mut ignored = batch(3..4, [SIZE; 2], device);
            assert_eq!(ignored.host_labels, [IGNORED]);
            ignored = ignored.mixed_with(vec![999], vec![0.5]);
            assert_eq!(row(ignored)?.0.loss, 0.0);
            let unknown = batch(0..1, [SIZE; 2], device).mixed_with(vec![CLASSES as i64], vec![0.5]);
            let refused = row(unknown).unwrap_err().to_string();
            assert!(refused.contains("the target of row 0 is 7, but there are 7 classes"), "{refused}");
            Ok(())
        });
        check.unwrap_or_else(|error| panic!("{error}"));
    });
}
