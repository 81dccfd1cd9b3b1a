//! Convolutions: the same under every split of the tensor axis, and as Burn's.

use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::Tensor;
use epl_comm::sliced;
use epl_core::Place;
use epl_modules::*;

use super::run::{At, outcome};
use super::{Outcome, assert_close};

const RANKS: [usize; 2] = [2, 3];
const IMAGES: [usize; 3] = [2, 5, 7 * 6];

fn image<L>(at: &At<'_, L>) -> Tensor<4> {
    at.inputs[0].clone().reshape([2, 5, 7, 6])
}

fn flat(x: Tensor<4>) -> Tensor<3> {
    let [batch, channels, height, width] = x.dims();
    x.reshape([batch, channels, height * width])
}

fn check(what: &str, limit: f64, run: impl Fn(usize) -> Outcome) {
    let whole = run(1);
    assert!(whole.len() > 2, "{what}: no gradient was compared");
    for ranks in RANKS {
        assert_close(&format!("{what}, tensor {ranks}"), &run(ranks), &whole, limit);
    }
}

/// Strides, dilations and paddings.
fn geometries() -> [([usize; 2], [usize; 2], PaddingConfig2d); 3] {
    [
        ([1, 1], [1, 1], PaddingConfig2d::Same),
        ([2, 1], [1, 1], PaddingConfig2d::Explicit(1, 0, 2, 1)),
        ([1, 2], [2, 1], PaddingConfig2d::Valid),
    ]
}

/// Output channels, then input channels; some do not divide.
pub(crate) fn output_then_input(limit: f64) {
    for (hidden, bias) in [(6, true), (7, false), (7, true)] {
        for (stride, dilation, padding) in geometries() {
            check("convolutions", limit, |ranks| {
                let build = |place: &Place| {
                    let config = |channels: [usize; 2], cut: ChannelCut| {
                        let config = SplitConv2dConfig::new(channels, [3, 2]).with_cut(cut).with_bias(bias);
                        config.with_stride(stride).with_dilation(dilation).with_padding(padding.clone())
                    };
                    let first = config([5, hidden], ChannelCut::Output).init(&place.child("first"));
                    let second = SplitConv2dConfig { kernel_size: [1, 2], ..config([hidden, 4], ChannelCut::Input) };
                    (first, second.with_dilation([1, 1]).init(&place.child("second")))
                };
                outcome(ranks, &[IMAGES], build, |at: At<'_, (SplitConv2d, SplitConv2d)>| {
                    flat(at.layer.1.forward(at.layer.0.forward(image(&at))))
                })
            });
        }
    }
}

/// Each cut alone: a gathered output, a sliced input.
pub(crate) fn gathered_and_sliced(limit: f64) {
    check("gathered", limit, |ranks| {
        let build = |place: &Place| SplitConv2dConfig::new([5, 4], [3, 3]).init(place);
        outcome(ranks, &[IMAGES], build, |at: At<'_, SplitConv2d>| {
            let group = at.epl.context().tensor();
            let input = epl_comm::copied(image(&at), group);
            flat(at.layer.forward(input).all_gather())
        })
    });
    check("sliced", limit, |ranks| {
        let build = |place: &Place| SplitConv2dConfig::new([5, 4], [3, 3]).with_cut(ChannelCut::Input).init(place);
        outcome(ranks, &[IMAGES], build, |at: At<'_, SplitConv2d>| {
            flat(at.layer.forward(sliced(image(&at), 1, at.epl.context().tensor())))
        })
    });
}

/// First values, outputs and gradients are those of Burn's layer at the same path.
pub(crate) fn burns(limit: f64) {
    for (stride, dilation, padding) in geometries() {
        let config = Conv2dConfig::new([5, 4], [3, 2]).with_stride(stride).with_dilation(dilation);
        let config = config.with_padding(padding.clone());
        let expected = outcome(
            1,
            &[IMAGES],
            |place: &Place| config.init(place),
            |at: At<'_, Conv2d>| flat(at.layer.forward(image(&at))),
        );
        let build = |place: &Place| {
            let config = ReplicatedConv2dConfig::new([5, 4], [3, 2]).with_stride(stride).with_dilation(dilation);
            config.with_padding(padding.clone()).init(place)
        };
        let whole = |at: At<'_, ReplicatedConv2d>| flat(at.layer.forward(image(&at)));
        assert_close("replicated", &outcome(2, &[IMAGES], build, whole), &expected, limit);
        let build = |place: &Place| {
            let config = SplitConv2dConfig::new([5, 4], [3, 2]).with_stride(stride).with_dilation(dilation);
            config.with_padding(padding.clone()).init(place)
        };
        let split = |at: At<'_, SplitConv2d>| flat(at.layer.forward(image(&at)).all_gather());
        assert_close("split", &outcome(3, &[IMAGES], build, split), &expected, limit);
    }
    let grouped = Conv2dConfig::new([6, 4], [3, 3]).with_groups(2);
    let image = [2, 6, 5 * 5];
    let expected = outcome(
        1,
        &[image],
        |place: &Place| grouped.init(place),
        |at: At<'_, Conv2d>| flat(at.layer.forward(at.inputs[0].clone().reshape([2, 6, 5, 5]))),
    );
    let build = |place: &Place| ReplicatedConv2dConfig::new([6, 4], [3, 3]).with_groups(2).init(place);
    let found = outcome(1, &[image], build, |at: At<'_, ReplicatedConv2d>| {
        flat(at.layer.forward(at.inputs[0].clone().reshape([2, 6, 5, 5])))
    });
    assert_close("grouped", &found, &expected, limit);
}
