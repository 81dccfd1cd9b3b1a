//! The layout changes nothing of an MAE, in f64: neither losses nor gradients and parameters.

use epl_core::config::{CheckpointType, Config, OffloadLevel, ZeroLevel};
use epl_core::{launch, testing};
use epl_models::mae::MaeBatch;
use epl_models::{MaeConfig, ViTConfig};

use super::layout;
use super::resnet::{Outcome, assert_same, batch, train_with};

const SIZE: usize = 12;
const ROWS: usize = 7;

/// With dropout; five segments, of which the third has parts of encoder and decoder.
fn model() -> MaeConfig {
    let encoder =
        ViTConfig::new(2).with_image_size(SIZE).with_patch_size(4).with_d_model(16).with_d_ff(24).with_heads(4);
    let encoder = encoder.with_layers(2).with_dropout(0.1).with_attention_dropout(0.1).with_deviation(0.2);
    let config = MaeConfig::new(encoder).with_decoder_d_model(12).with_decoder_d_ff(20).with_decoder_heads(2);
    config.with_decoder_layers(2).with_normalised_pixels(true)
}

fn outcome(options: &Config, micro_batches: usize) -> Outcome {
    let outcomes = launch(options, |epl| {
        let built = epl.build(|at| model().init(at))?;
        train_with(built, (ROWS, micro_batches), |rows, device| MaeBatch {
            pixels: batch(rows, [SIZE; 2], device).pixels,
            noise: None,
        })
    });
    let (losses, mut tensors) = outcomes.unwrap_or_else(|error| panic!("{error}")).pop().expect("there is a last rank");
    // A bias of the keys shifts all scores of a query alike: its gradient is rounding, and what it is updated with.
    tensors.retain(|name, _| !name.contains(".key.bias"));
    (losses, tensors)
}

#[test]
fn any_layout_equals_one_rank() {
    epl_testing::in_f64(|| {
        let one = outcome(&testing::config(1, 1, 1), 1);
        assert!(one.0.iter().all(|loss| loss.is_finite()) && one.0[1] != one.0[0], "{:?}", one.0);
        let layouts = [
            (layout((1, 2), |_| ()), 1),
            (layout((1, 1), |_| ()), 3),
            (layout((3, 1), |_| ()), 2),
            // One of the replicas has no row.
            (layout((8, 1), |_| ()), 1),
            (layout((2, 2), |options| options.zero.level = ZeroLevel::V2), 1),
            (layout((2, 1), |options| options.zero.level = ZeroLevel::V3), 2),
            (layout((2, 1), |options| options.offload.level = OffloadLevel::V0), 1),
            (layout((1, 1), |options| options.dist.pipeline_parallel_size = 5), 4),
            (layout((1, 2), |options| options.dist.pipeline_parallel_size = 2), 3),
            (layout((2, 1), |options| options.dist.pipeline_parallel_size = 3), 2),
            (layout((2, 1), |options| options.gradient_checkpoint.r#type = CheckpointType::Auto), 1),
        ];
        for (options, micro_batches) in &layouts {
            let what = format!("{micro_batches} micro-batches, {}", options.to_toml());
            assert_same(&outcome(options, *micro_batches), &one, &what);
        }
    });
}
