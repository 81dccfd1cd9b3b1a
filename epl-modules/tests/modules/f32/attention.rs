//! Attention: masks, the cache of generation, T5's buckets.

use burn::module::Param;
use burn::tensor::{Bool, Int, Tensor};
use epl_core::testing::relative_error;
use epl_core::{Epl, Pass, Place, Result, testing};
use epl_modules::*;

use crate::layers::run::{Net, host};
use epl_testing::tensor;

type Block = (MultiHeadAttention, RelativeBias);

fn build(place: &Place) -> Block {
    let attention = MultiHeadAttentionConfig::new(6, 4).with_head_dim(Some(3)).init(&place.child("attention"));
    let bias = RelativeBiasConfig::new(4).with_bidirectional(false).with_n_buckets(8).with_max_distance(6);
    (attention, bias.init(&place.child("bias")))
}

/// Runs on `ranks` tensor ranks with an untracked, untrained pass.
fn evaluate(ranks: usize, f: impl Fn(&Epl, &Block) + Sync) {
    testing::run((1, ranks, 1), |epl| -> Result<()> {
        let net = epl.build(|place| Net { layer: build(&place.child("layer")) })?.into_inner();
        epl.context().begin(Pass { step: 0, training: false, samples: [0, 1].into(), empty: false });
        f(&epl, &net.layer);
        Ok(())
    });
}

#[track_caller]
fn assert_same<const D: usize>(a: Tensor<D>, b: Tensor<D>) {
    let error = relative_error(&host(a.inner()), &host(b.inner()));
    assert!(error < 1e-5, "off by {error:e}");
}

#[test]
fn generation_with_a_cache_is_the_causal_forward() {
    for ranks in [1, 2] {
        evaluate(ranks, |epl, (attention, bias)| {
            let x = tensor::<3>(1, [2, 7, 6], epl.place().device());
            let input = AttentionInput::self_attention(x.clone()).causal().with_bias(bias.forward(7, 7, 0));
            let whole = attention.forward(input);
            let mut cache = AttentionCache::new();
            assert!(cache.is_empty());
            // A prompt of three, then one by one, then the rest at once.
            for step in [0..3, 3..4, 4..5, 5..7] {
                let input = AttentionInput::self_attention(x.clone().slice([0..2, step.clone(), 0..6])).causal();
                let input = input.with_bias(bias.forward(step.len(), step.end, step.start));
                let part = attention.forward_cache(input, &mut cache);
                assert_eq!(cache.len(), step.end);
                assert_same(part, whole.clone().slice([0..2, step, 0..6]));
            }
            // The second sequence alone goes on.
            let mut cache = cache.select(Tensor::<1, Int>::from_data([1], epl.place().device()));
            let next = tensor::<3>(2, [1, 1, 6], epl.place().device());
            let all = Tensor::cat(vec![x.slice([1..2, 0..7, 0..6]), next.clone()], 1);
            let expected = attention.forward(AttentionInput::self_attention(all).causal()).slice([0..1, 7..8, 0..6]);
            assert_same(attention.forward_cache(AttentionInput::self_attention(next).causal(), &mut cache), expected);
        });
    }
}

#[test]
fn a_cross_attention_computes_its_memory_once() {
    for ranks in [1, 2] {
        evaluate(ranks, |epl, (attention, _)| {
            let device = epl.place().device();
            let (x, memory) = (tensor::<3>(1, [2, 3, 6], device), tensor::<3>(2, [2, 5, 6], device));
            let whole = attention.forward(AttentionInput::cross_attention(x.clone(), memory.clone()));
            let mut cache = AttentionCache::new();
            for (step, memory) in
                [memory, tensor(3, [2, 5, 6], device), tensor(4, [2, 5, 6], device)].into_iter().enumerate()
            {
                let x = x.clone().slice([0..2, step..step + 1, 0..6]);
                let part = attention.forward_cache(AttentionInput::cross_attention(x, memory), &mut cache);
                assert_same(part, whole.clone().slice([0..2, step..step + 1, 0..6]));
            }
        });
    }
}

#[test]
fn padding_is_not_attended_to() {
    evaluate(1, |epl, (attention, _)| {
        let device = epl.place().device();
        let (x, memory) = (tensor::<3>(1, [2, 3, 6], device), tensor::<3>(2, [2, 5, 6], device));
        let padding = Tensor::<2, Bool>::from_data([[false, false, false, true, true]; 2], device);
        let padded = AttentionInput::cross_attention(x.clone(), memory.clone()).with_padding(padding);
        let short = AttentionInput::cross_attention(x, memory.slice([0..2, 0..3, 0..6]));
        assert_same(attention.forward(padded), attention.forward(short));
    });
}

#[test]
fn a_query_without_keys_gets_zeros_and_finite_gradients() {
    evaluate(1, |epl, (attention, _)| {
        let device = epl.place().device();
        let x = tensor::<3>(1, [2, 3, 6], device).require_grad();
        let padding = Tensor::<2, Bool>::from_data([[false, false, false], [true, true, true]], device);
        let y = attention.forward(AttentionInput::self_attention(x.clone()).with_padding(padding));
        let bias = attention.output.bias.as_ref().expect("by default").val().inner();
        let second = y.clone().inner().slice([1..2, 0..3, 0..6]) - bias.unsqueeze();
        assert_eq!(second.abs().max().into_scalar::<f32>(), 0.0);
        let gradient = host(x.grad(&y.sum().backward()).expect("x is tracked"));
        assert!(gradient.iter::<f64>().all(f64::is_finite));
        assert!(gradient.iter::<f64>().skip(18).all(|value| value == 0.0), "the second sample");
    });
}

#[test]
fn buckets_are_those_of_t5() {
    testing::run((1, 1, 1), |epl| {
        let far = [(0, 0), (7, 7), (8, 8), (11, 8), (12, 9), (15, 9), (16, 10), (22, 10), (23, 11), (31, 11), (32, 12)];
        let further = [(45, 12), (46, 13), (63, 13), (64, 14), (90, 14), (91, 15), (128, 15), (999, 15)];
        let encoder = RelativeBiasConfig::new(1).init(epl.place());
        let decoder = RelativeBiasConfig::new(1).with_bidirectional(false).init(epl.place());
        for (distance, bucket) in far.into_iter().chain(further) {
            assert_eq!(bucket_of(&encoder, distance, 0), bucket, "a query {distance} after its key");
            assert_eq!(bucket_of(&encoder, 0, distance), if distance == 0 { 0 } else { 16 + bucket });
            assert_eq!(bucket_of(&decoder, 0, distance), 0, "a key {distance} after its query");
        }
        for (distance, bucket) in [(0, 0), (15, 15), (16, 16), (18, 16), (19, 17), (127, 31), (500, 31)] {
            assert_eq!(bucket_of(&decoder, distance, 0), bucket, "a query {distance} after its key");
        }
        Ok(())
    });
}

#[test]
fn the_biases_of_several_queries_are_those_of_each() {
    testing::run((1, 1, 1), |epl| {
        let layer = RelativeBiasConfig::new(3).init(epl.place());
        for (queries, keys, offset) in [(5, 9, 0), (4, 7, 3), (3, 2, 40)] {
            let each = (0..queries).map(|query| layer.forward(1, keys, offset + query)).collect();
            assert_eq!(host(layer.forward(queries, keys, offset)), host(Tensor::cat(each, 2)));
        }
        Ok(())
    });
}

/// The bucket that a query and a key at these positions read: the table is set to the bucket numbers.
fn bucket_of(layer: &RelativeBias, query: usize, key: usize) -> usize {
    let device = layer.weight.val().device();
    let table = Tensor::<1, Int>::arange(0..32, &device).float().reshape([32, 1]);
    let mut layer = layer.clone();
    layer.weight = Param::from_tensor(table);
    let bias = layer.forward(1, key + 1, query);
    bias.into_data().iter::<f64>().last().expect("one key") as usize
}
