//! The layout changes nothing of a ViT, in f64: neither losses nor gradients and parameters.

use epl_core::config::{CheckpointType, Config, ZeroLevel};
use epl_core::{launch, testing};
use epl_models::ViTConfig;

use super::layout;
use super::resnet::{CLASSES, Outcome, assert_same, train_on};

const SIZE: usize = 12;
const ROWS: usize = 7;

/// With dropout, smoothing, and fewer patches than a product's width.
fn model() -> ViTConfig {
    ViTConfig::new(CLASSES)
        .with_image_size(SIZE)
        .with_patch_size(4)
        .with_d_model(16)
        .with_d_ff(24)
        .with_heads(4)
        .with_layers(3)
        .with_dropout(0.1)
        .with_attention_dropout(0.1)
        .with_label_smoothing(0.1)
}

fn outcome(options: &Config, split: bool) -> Outcome {
    let outcomes = launch(options, |epl| match split {
        true => train_on(epl.build(|at| model().init_split(at))?, ROWS, [SIZE; 2]),
        false => train_on(epl.build(|at| model().init(at))?, ROWS, [SIZE; 2]),
    });
    let (losses, mut tensors) = outcomes.unwrap_or_else(|error| panic!("{error}")).pop().expect("there is a last rank");
    // A bias of the keys shifts all scores of a query alike: its gradient is rounding, and what it is updated with.
    let before = tensors.len();
    tensors.retain(|name, _| !name.contains(".key.bias"));
    assert_eq!(before - tensors.len(), 2 * 3);
    (losses, tensors)
}

#[test]
fn any_layout_equals_one_rank() {
    epl_testing::in_f64(|| {
        let one = outcome(&testing::config(1, 1, 1), false);
        assert!(one.0.iter().all(|loss| loss.is_finite()) && one.0[1] != one.0[0], "{:?}", one.0);
        let layouts = [
            layout((1, 2), |_| ()),
            layout((3, 1), |_| ()),
            layout((2, 2), |options| options.zero.level = ZeroLevel::V2),
            layout((2, 1), |options| options.zero.level = ZeroLevel::V3),
            layout((1, 1), |options| options.dist.pipeline_parallel_size = 4),
            layout((1, 2), |options| options.dist.pipeline_parallel_size = 2),
            layout((2, 1), |options| options.gradient_checkpoint.r#type = CheckpointType::Auto),
        ];
        for options in &layouts {
            for split in [false, true] {
                assert_same(&outcome(options, split), &one, &format!("split {split}, {}", options.to_toml()));
            }
        }
    });
}
