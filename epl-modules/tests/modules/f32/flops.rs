//! What a profile says of the floating-point operations of segments.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Int, Tensor};
use epl_core::{Chain, Engine, MicroBatch, Place, testing};
use epl_modules::*;

const ROWS: usize = 2;
const LENGTH: usize = 8;
const WIDTH: usize = 8;
const HEADS: usize = 2;
const WORDS: usize = 12;
const EXPERTS: usize = 4;
const HIDDEN: usize = 16;

#[derive(Module, Debug)]
struct Net {
    words: SplitEmbedding,
    attention: MultiHeadAttention,
    moe: Moe,
    conv: ReplicatedConv2d,
    lstm: nn::Lstm,
    burns_linear: Linear,
    burns_conv: Conv2d,
}

type Batch = Tensor<2, Int>;

/// A picture of each row of text, through a kernel whose pixels are few, and spread over the row again.
fn through(conv: impl Fn(Tensor<4>) -> Tensor<4>, x: Tensor<3>) -> Tensor<3> {
    let picture = conv(x.clone().reshape([ROWS, 4, 4, 4]));
    x + picture.reshape([ROWS, 1, WIDTH])
}

fn chain(at: &Place) -> Chain<Net, Batch, Tensor<3>> {
    let net = Net {
        words: SplitEmbeddingConfig::new(WORDS, WIDTH).init(&at.child("words")),
        attention: MultiHeadAttentionConfig::new(WIDTH, HEADS).init(&at.child("attention")),
        moe: MoeConfig::new(WIDTH, HIDDEN, EXPERTS)
            .with_gate(Gate::Top2)
            .with_capacity(Capacity::Unlimited)
            .init(&at.child("moe")),
        conv: ReplicatedConv2dConfig::new([4, 8], [3, 3]).with_groups(2).with_stride([2, 2]).init(&at.child("conv")),
        lstm: nn::LstmConfig::new(WIDTH, WIDTH, true).init(&at.child("lstm")),
        burns_linear: LinearConfig::new(WIDTH, WIDTH).init(at),
        burns_conv: Conv2dConfig::new([4, 8], [3, 3]).with_stride([2, 2]).init(at),
    };
    Chain::of(net)
        .first(&["words", "attention"], |net: &Net, ids: &Batch| {
            net.attention.forward(AttentionInput::self_attention(net.words.forward(ids.clone())))
        })
        .then(&["moe"], |net, x, _| net.moe.forward(x, None).hidden)
        .then(&["conv"], |net, x, _| through(|picture| net.conv.forward(picture), x))
        .then(&["lstm"], |net, x, _| net.lstm.forward(x, None).0)
        .then(&["burns_linear"], |net, x, _| net.burns_linear.forward(x))
        .then(&["burns_conv"], |net, x, _| through(|picture| net.burns_conv.forward(picture), x))
        .then(&["words"], |net, x, _| net.words.logits(x).all_gather())
        .mean_loss(|_, x, _| x.powi_scalar(2).mean())
}

/// Of every segment.
fn measured(tensor: usize) -> Vec<Option<f64>> {
    let found = testing::run((1, tensor, 1), |epl| {
        let engine = Engine::build(&epl, chain, &AdamWConfig::new())?;
        let ids = Tensor::<1, Int>::arange(0..(ROWS * LENGTH) as i64, epl.place().device());
        let ids = ids.remainder_scalar(WORDS as i64).reshape([ROWS, LENGTH]);
        let profile = engine.profile(&MicroBatch::new(ids, [0, 1]))?;
        Ok(profile.0.iter().map(|segment| segment.flops).collect::<Vec<_>>())
    });
    assert!(found.iter().all(|other| *other == found[0]), "{found:?}");
    found.into_iter().next().expect("there is a first rank")
}

/// Two for a multiplication and its addition, whether the layers are split or not.
#[test]
fn layers_tell_their_products_and_what_is_not_known_is_left_out() {
    let tokens = ROWS * LENGTH;
    for tensor in [1, 2] {
        let [attention, moe, conv, lstm, linear, unknown, head] = measured(tensor)[..] else {
            panic!("seven segments")
        };
        let (projections, scores) = (4 * tokens * WIDTH * WIDTH, 2 * ROWS * LENGTH * LENGTH * WIDTH);
        assert_eq!(attention, Some((2 * (projections + scores)) as f64));
        // Every token goes to two experts; those that take fewer than the others have padding.
        let (router, of_experts) = (2 * tokens * WIDTH * EXPERTS, 2 * 2 * WIDTH * HIDDEN);
        let rows = (moe.expect("it is known") - router as f64) / of_experts as f64;
        assert!(rows >= 2.0 * tokens as f64 && rows.fract() == 0.0 && rows <= (EXPERTS * tokens) as f64, "{rows}");
        // One pixel a row and channel, over half the input's channels.
        assert_eq!(conv, Some((2 * ROWS * 8 * 2 * 9) as f64));
        // Two products a gate.
        assert_eq!(lstm, Some((4 * 2 * 2 * tokens * WIDTH * WIDTH) as f64));
        assert_eq!(linear, Some((2 * tokens * WIDTH * WIDTH) as f64));
        assert_eq!(unknown, None);
        assert_eq!(head, Some((2 * tokens * WIDTH * WORDS) as f64));
    }
}

#[derive(Module, Debug)]
struct Small {
    words: SplitEmbedding,
    attention: MultiHeadAttention,
}

fn small(at: &Place) -> Chain<Small, Batch, Tensor<3>> {
    let net = Small {
        words: SplitEmbeddingConfig::new(WORDS, WIDTH).init(&at.child("words")),
        attention: MultiHeadAttentionConfig::new(WIDTH, HEADS).init(&at.child("attention")),
    };
    Chain::of(net)
        .first(&["words", "attention"], |net: &Small, ids: &Batch| {
            net.attention.forward(AttentionInput::self_attention(net.words.forward(ids.clone())))
        })
        .then(&["words"], |net, x, _| net.words.logits(x).all_gather())
        .mean_loss(|_, x, _| x.powi_scalar(2).mean())
}

/// Of forward and backward, over all rows, whichever rank runs them and however often.
#[test]
fn a_steps_operations_are_the_same_under_every_layout() {
    let tokens = ROWS * LENGTH;
    let forward = 2 * (4 * tokens * WIDTH * WIDTH + 2 * ROWS * LENGTH * LENGTH * WIDTH + tokens * WIDTH * WORDS);
    let plain = |data, tensor| testing::config(data, tensor, 1);
    let with = |config: epl_core::Config, key: &str, value: &str| config.with(key, value).expect("a valid option");
    for config in [
        plain(1, 1),
        plain(2, 1),
        // One replica has a stand-in, which counts for nothing.
        plain(3, 1),
        plain(2, 2),
        plain(1, 1).with("dist.pipeline_parallel_size", 2).expect("a valid option"),
        with(plain(2, 1), "gradient_checkpoint.type", "auto"),
        with(plain(2, 1), "zero.level", "v3"),
    ] {
        let found = epl_core::launch(&config, |epl| {
            let mut engine = Engine::build(&epl, small, &AdamWConfig::new())?;
            let ids = Tensor::<1, Int>::arange(0..tokens as i64, epl.place().device());
            let ids = ids.remainder_scalar(WORDS as i64).reshape([ROWS, LENGTH]);
            Ok(engine.train_batch(&ids, 0.1)?.flops)
        });
        let found = found.unwrap_or_else(|error| panic!("{error}"));
        assert!(found.iter().all(|flops| *flops == Some((3 * forward) as f64)), "{found:?}, not {}", 3 * forward);
    }
}

#[test]
fn a_step_with_a_layer_that_tells_nothing_says_that_it_does_not_know() {
    let found = testing::run((1, 1, 1), |epl| {
        let mut engine = Engine::build(&epl, chain, &AdamWConfig::new())?;
        Ok(engine.train_batch(&Tensor::zeros([ROWS, LENGTH], epl.place().device()), 0.1)?.flops)
    });
    assert_eq!(found, [None]);
}
