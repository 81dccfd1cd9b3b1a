//! The layout changes nothing of a ResMLP, in f64: neither losses nor gradients and parameters.

use epl_core::config::{CheckpointType, Config, ZeroLevel};
use epl_core::{launch, testing};
use epl_models::ResMlpConfig;

use super::layout;
use super::resnet::{CLASSES, Outcome, assert_same, train_on};

const SIZE: usize = 12;
const ROWS: usize = 7;

/// With parts that are left out, smoothing, and hidden features that no number of ranks divides.
fn model() -> ResMlpConfig {
    ResMlpConfig::new(CLASSES)
        .with_image_size(SIZE)
        .with_patch_size(4)
        .with_d_model(10)
        .with_d_ff(23)
        .with_layers(3)
        .with_layer_scale(0.7)
        .with_drop_path(0.3)
        .with_deviation(0.3)
        .with_label_smoothing(0.1)
}

fn outcome(options: &Config, split: bool) -> Outcome {
    let outcomes = launch(options, |epl| match split {
        true => train_on(epl.build(|at| model().init_split(at))?, ROWS, [SIZE; 2]),
        false => train_on(epl.build(|at| model().init(at))?, ROWS, [SIZE; 2]),
    });
    outcomes.unwrap_or_else(|error| panic!("{error}")).pop().expect("there is a last rank")
}

#[test]
fn any_layout_equals_one_rank() {
    epl_testing::in_f64(|| {
        let one = outcome(&testing::config(1, 1, 1), false);
        assert!(one.0.iter().all(|loss| loss.is_finite()) && one.0[1] != one.0[0], "{:?}", one.0);
        let layouts = [
            (layout((1, 2), |_| ()), true),
            (layout((3, 1), |_| ()), false),
            // One of the replicas has no row.
            (layout((8, 1), |_| ()), false),
            (layout((2, 2), |options| options.zero.level = ZeroLevel::V2), true),
            (layout((2, 1), |options| options.zero.level = ZeroLevel::V3), false),
            (layout((1, 1), |options| options.dist.pipeline_parallel_size = 4), true),
            (layout((1, 2), |options| options.dist.pipeline_parallel_size = 2), true),
            (layout((2, 1), |options| options.gradient_checkpoint.r#type = CheckpointType::Auto), false),
        ];
        for (options, split) in &layouts {
            assert_same(&outcome(options, *split), &one, &format!("split {split}, {}", options.to_toml()));
        }
    });
}
