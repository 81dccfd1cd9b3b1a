//! Biases that alone stay in f32 beside weights in 16 bits.

use burn::module::{Module, ModuleDisplay};
use epl_core::Config;
use epl_core::config::HalfDtype;
use epl_core::model::precision::HalfPrecision;
use epl_modules::nn;

use super::case::{self, Layer};
use super::strategy::{gradients, in_half};

/// Near f32, in 16 bits, on one rank and on two.
fn check<L: Module + ModuleDisplay + 'static>(name: &str, layer: Layer<L>) {
    let (expected, _) = gradients(&Config::new(), [6, 6], layer).unwrap_or_else(|error| panic!("{name}: {error}"));
    for (half, ranks) in [(HalfDtype::Bf16, 1), (HalfDtype::F16, 1), (HalfDtype::Bf16, 2)] {
        let config = in_half(half).with("amp.full_precision", vec!["layer.**.bias"]);
        let config = config.and_then(|config| config.with("dist.tensor_parallel_size", ranks)).expect("options");
        let found = gradients(&config, [6, 6], layer);
        let (found, seen) = found.unwrap_or_else(|error| panic!("{name}, {half}, {ranks} ranks: {error}"));
        assert_eq!(seen, [HalfPrecision::new(half).dtype(); 2], "{name}");
        let rounding = if half == HalfDtype::F16 { 2f64.powi(-11) } else { 2f64.powi(-8) };
        case::check(&format!("{name}, {half}, {ranks} ranks"), &found, &expected, 16.0 * rounding);
    }
}

#[test]
fn of_linear_layers() {
    epl_testing::alone(|| {
        check(
            "Linear",
            Layer::<nn::Linear> {
                build: |place| nn::LinearConfig::new(6, 4).init(place),
                forward: |layer, x| layer.forward(x),
            },
        );
        // One column: whole on each rank.
        check(
            "Linear to 1",
            Layer::<nn::Linear> {
                build: |place| nn::LinearConfig::new(6, 1).init(place),
                forward: |layer, x| layer.forward(x),
            },
        );
        check(
            "SwiGlu",
            Layer::<nn::SwiGlu> {
                build: |place| nn::SwiGluConfig::new(6, 4).with_bias(true).init(place),
                forward: |layer, x| layer.forward(x),
            },
        );
    });
}

/// Cut by columns, then by rows.
#[test]
fn of_a_feed_forward_network() {
    epl_testing::alone(|| {
        check(
            "PositionWiseFeedForward",
            Layer::<nn::transformer::PositionWiseFeedForward> {
                build: |place| nn::transformer::PositionWiseFeedForwardConfig::new(6, 8).with_dropout(0.0).init(place),
                forward: |layer, x| layer.forward(x),
            },
        );
    });
}

#[test]
fn of_convolutions() {
    epl_testing::alone(|| {
        check(
            "Conv1d",
            Layer::<nn::conv::Conv1d> {
                build: |place| nn::conv::Conv1dConfig::new(6, 4, 3).init(place),
                forward: |layer, x| layer.forward(x),
            },
        );
        check(
            "ConvTranspose1d",
            Layer::<nn::conv::ConvTranspose1d> {
                build: |place| nn::conv::ConvTranspose1dConfig::new([6, 4], 3).init(place),
                forward: |layer, x| layer.forward(x),
            },
        );
    });
}
