//! Token by token with a cache is the causal forward over the whole.

use burn::tensor::{Int, Tensor, TensorData};
use epl_core::testing::{self, relative_error};
use epl_core::{Epl, Pass};
use epl_modules::{
    Capacity, LayerExpertsConfig, NormOrder, RotaryConfig, TokenMask, TransformerCache, TransformerInput,
    TransformerLayer, TransformerLayerConfig,
};

use super::net::alone;
use super::{host, noise};

fn tensor(stream: usize, shape: [usize; 3], epl: &Epl) -> Tensor<3> {
    let values: Vec<f64> = (0..shape.iter().product()).map(|index| noise(stream, index, 0, 0)).collect();
    Tensor::from_data(TensorData::new(values, shape), epl.place().device())
}

/// Every order of the norm, with and without a memory, with and without experts, on one and two ranks; with positions that turn,
/// and in windows.
pub(crate) fn token_by_token(limit: f64) {
    let turned = |config: TransformerLayerConfig| {
        let config = config.with_rotary(Some(RotaryConfig::new().with_theta(10.0))).with_qk_norm(true);
        config.with_head_dim(Some(4)).with_n_kv_heads(Some(2))
    };
    let sandwich = turned(TransformerLayerConfig::new(6, 4, 9)).with_norm_order(NormOrder::Sandwich);
    let sandwich = sandwich.with_zero_centered_gamma(true).with_attention_softcap(Some(0.3));
    for ranks in [1, 2] {
        run(&turned(TransformerLayerConfig::new(6, 4, 9)), ranks, limit);
        // No position before, one, some that steps of several positions pass, and all.
        for window in [1, 2, 3, 20] {
            run(&sandwich.clone().with_window(Some(window)), ranks, limit);
        }
    }
    for order in [NormOrder::Pre, NormOrder::Post] {
        for cross in [false, true] {
            for experts in [None, Some(LayerExpertsConfig::new(3).with_capacity(Capacity::Unlimited))] {
                let config = TransformerLayerConfig::new(6, 2, 9)
                    .with_norm_order(order)
                    .with_cross_attention(cross)
                    .with_experts(experts);
                for ranks in [1, 2] {
                    run(&config, ranks, limit);
                }
            }
        }
    }
}

fn run(config: &TransformerLayerConfig, ranks: usize, limit: f64) {
    testing::run((1, ranks, 1), |epl| {
        let layer = alone(config, &epl)?;
        epl.context().begin(Pass { step: 0, training: false, samples: [0, 1].into(), empty: false });
        check(&layer, &epl, config.cross_attention, limit);
        Ok(())
    });
}

fn check(layer: &TransformerLayer, epl: &Epl, cross: bool, limit: f64) {
    let (x, memory) = (tensor(1, [2, 7, 6], epl), tensor(2, [2, 4, 6], epl));
    let input = |x: Tensor<3>, memory: &Tensor<3>| {
        let input = TransformerInput::new(x).causal();
        if cross { input.with_memory(memory.clone(), None) } else { input }
    };
    let whole = layer.forward(input(x.clone(), &memory)).hidden;
    let assert_same = |part: Tensor<3>, expected: Tensor<3>| {
        let error = relative_error(&host(part.inner()), &host(expected.inner()));
        assert!(error <= limit, "off by {error:e}");
    };
    let mut cache = TransformerCache::new();
    assert!(cache.is_empty());
    // A prompt of three, then one by one, then the rest at once. Later memories are not read.
    for (number, step) in [0..3, 3..4, 4..5, 5..7].into_iter().enumerate() {
        let memory = if number == 0 { memory.clone() } else { memory.zeros_like() };
        let new =
            input(x.clone().slice([0..2, step.clone(), 0..6]), &memory).with_tokens(TokenMask::all(2, step.len()));
        let part = layer.forward_cache(new, &mut cache).hidden;
        assert_eq!(cache.len(), step.end);
        assert_same(part, whole.clone().slice([0..2, step, 0..6]));
    }
    // The second sequence alone goes on.
    let mut cache = cache.select(Tensor::<1, Int>::from_data([1], epl.place().device()));
    let next = tensor(3, [1, 1, 6], epl);
    let all = Tensor::cat(vec![x.slice([1..2, 0..7, 0..6]), next.clone()], 1);
    let memory = memory.slice([1..2, 0..4, 0..6]);
    let expected = layer.forward(input(all, &memory)).hidden.slice([0..1, 7..8, 0..6]);
    assert_same(layer.forward_cache(input(next, &memory), &mut cache).hidden, expected);
}
