//! The layout changes nothing of a Swin transformer, in f64: neither losses nor gradients and parameters.

use epl_core::config::{CheckpointType, Config, ZeroLevel};
use epl_core::{launch, testing};
use epl_models::{SwinConfig, SwinVersion};

use super::layout;
use super::resnet::{CLASSES, Outcome, assert_same, train_on};

const SIZE: usize = 14;
const ROWS: usize = 5;

/// With all kinds of dropout, over grids of 7 × 7, which windows of 3 do not divide, and of 4 × 4.
fn model(version: SwinVersion) -> SwinConfig {
    SwinConfig::new(CLASSES)
        .with_version(version)
        .with_image_size(SIZE)
        .with_patch_size(2)
        .with_embedding_size(8)
        .with_depths(vec![2, 1])
        .with_heads(vec![2, 4])
        .with_window(3)
        .with_mlp_ratio(1.5)
        .with_absolute_positions(version == SwinVersion::V1)
        .with_dropout(0.1)
        .with_attention_dropout(0.1)
        .with_drop_path(0.3)
        .with_label_smoothing(0.1)
        .with_deviation(0.3)
        // Blocks that begin as the identity have gradients of zero inside.
        .with_identity_blocks(false)
}

fn outcome(options: &Config, version: SwinVersion, split: bool) -> Outcome {
    let model = model(version);
    let outcomes = launch(options, |epl| match split {
        true => train_on(epl.build(|at| model.init_split(at))?, ROWS, [SIZE; 2]),
        false => train_on(epl.build(|at| model.init(at))?, ROWS, [SIZE; 2]),
    });
    let (losses, mut tensors) = outcomes.unwrap_or_else(|error| panic!("{error}")).pop().expect("there is a last rank");
    // A bias of the keys shifts all scores of a query alike: its gradient is rounding, and what it is updated with.
    let before = tensors.len();
    tensors.retain(|name, _| !name.contains(".key.bias"));
    assert_eq!(before - tensors.len(), if version == SwinVersion::V1 { 2 * 3 } else { 0 });
    (losses, tensors)
}

#[test]
fn any_layout_equals_one_rank() {
    epl_testing::in_f64(|| {
        let layouts = [
            layout((1, 2), |_| ()),
            layout((3, 1), |options| options.zero.level = ZeroLevel::V3),
            layout((2, 2), |options| options.zero.level = ZeroLevel::V2),
            layout((1, 2), |options| options.dist.pipeline_parallel_size = 3),
            layout((2, 1), |options| options.gradient_checkpoint.r#type = CheckpointType::Auto),
            // Attention gets the bias of its windows, whose heads are divided: the networks are whole.
            layout((1, 2), |options| options.dist.whole_layers = Some(vec!["**".to_string()])),
        ];
        for version in [SwinVersion::V1, SwinVersion::V2] {
            let one = outcome(&testing::config(1, 1, 1), version, false);
            assert!(one.0.iter().all(|loss| loss.is_finite()) && one.0[1] != one.0[0], "{:?}", one.0);
            for (at, options) in layouts.iter().enumerate() {
                let split = at % 2 == 0;
                let said = format!("{version:?}, split {split}, {}", options.to_toml());
                assert_same(&outcome(options, version, split), &one, &said);
            }
        }
    });
}
