//! Layers that draw for the samples, between plain layers of Burn: a rank would draw for its slice alone.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use epl_core::plan::SplitFinding;
use epl_core::{Chain, Place, launch_dry, testing};
use epl_modules::nn::activation::RReluConfig;
use epl_modules::nn::{DropoutConfig, GaussianNoiseConfig};

type Rows = Tensor<2>;

/// What is found of two layers and one between them.
fn found<M: burn::module::Module>(
    between: impl Fn(&Place) -> M,
    forward: impl Fn(&M, Rows) -> Rows + Copy + Send + Sync + 'static,
) -> SplitFinding {
    let linear = |from, to, at: &Device| LinearConfig::new(from, to).init(at);
    let chain = |at: &Place| {
        let layers = ((linear(6, 10, at), linear(10, 6, at)), between(at));
        Chain::of(layers)
            .first(&["0", "1"], move |((up, down), between): &((Linear, Linear), M), rows: &Rows| {
                down.forward(forward(between, up.forward(rows.clone())))
            })
            .mean_loss(|_, rows, _| rows.mean())
    };
    let read = |epl: epl_core::Epl| {
        let sample = epl_testing::tensor(0, [4, 6], epl.place().device());
        Ok(epl.plan(chain)?.discover(&sample)?.plan().findings()[0].clone())
    };
    launch_dry(&testing::config(1, 2, 1), 0, read).unwrap_or_else(|error| panic!("{error}")).0
}

#[test]
fn discovered_segments_draw_nothing_for_their_samples() {
    let plain = found(|_| DropoutConfig::new(0.0).init(), |layer, rows| layer.forward(rows));
    assert!(matches!(&plain, SplitFinding::Split(split) if split.extent == 10), "{plain:?}");
    let drawing = [
        found(|_| DropoutConfig::new(0.5).init(), |layer, rows| layer.forward(rows)),
        found(|_| GaussianNoiseConfig::new(0.5).init(), |layer, rows| layer.forward(rows)),
        found(|_| RReluConfig::new().init(), |layer, rows| layer.forward(rows)),
    ];
    for found in drawing {
        let SplitFinding::Whole(why) = found else { panic!("{found:?}") };
        assert!(why.starts_with("a layer of it draws random numbers for the samples"), "{why}");
    }
}
