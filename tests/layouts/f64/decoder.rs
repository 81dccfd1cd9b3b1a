//! No layout changes what a decoder computes, of rows of ragged lengths: in f64, all errors are at most 1e-10.

use epl::config::PipelineStrategy::{PreferBackward, PreferForward};
use epl::config::StateTier::{File, Host};
use epl::config::ZeroLevel::{V1, V2, V3};
use epl::models::decoder::DecoderConfig;

use epl::testing::largest_error;

use crate::decoders::{gemma2, gone_on, gpt2, llama, mixtral, qwen3, qwen3_moe, train};
use crate::parity::{Layout, assert_same, layout};

const BOUND: f64 = 1e-10;

fn check(model: &DecoderConfig, layouts: &[Layout]) {
    let expected = train(model, layout(1, 1, 1, 1));
    for layout in layouts {
        assert_same(*layout, &train(model, *layout), &expected, BOUND);
    }
}

/// Replicas, slices, stages, and several of them.
const MESHES: [Layout; 8] = [
    layout(1, 1, 1, 4),
    layout(2, 1, 1, 2),
    layout(1, 2, 1, 1),
    layout(1, 1, 1, 3).stages(2, 1, PreferBackward),
    layout(1, 1, 1, 2).stages(5, 1, PreferForward),
    layout(2, 2, 1, 2).stages(2, 1, PreferBackward),
    layout(1, 2, 1, 4).stages(2, 2, PreferBackward),
    layout(1, 2, 1, 2).whole(&["**.self_attention"]),
];

/// Sharded state, state away from the device, and recomputation.
const STATE: [Layout; 6] = [
    layout(3, 1, 1, 1).zero(V1),
    layout(2, 2, 1, 2).zero(V2).recompute(&[]),
    layout(2, 1, 1, 2).zero(V3),
    layout(2, 2, 1, 1).zero(V3).offload(Host),
    layout(1, 1, 1, 4).offload(File),
    layout(2, 1, 1, 4).stages(2, 1, PreferBackward).zero(V3),
];

/// Experts over replicas, beside the other axes.
const EXPERTS: [Layout; 8] = [
    layout(2, 1, 2, 2),
    layout(2, 2, 2, 1),
    layout(4, 1, 2, 1),
    layout(2, 1, 2, 2).stages(2, 1, PreferBackward),
    layout(2, 1, 2, 1).zero(V3),
    layout(2, 1, 2, 1).zero(V2).recompute(&[]),
    layout(2, 1, 2, 2).offload(Host),
    layout(2, 2, 2, 2).whole(&["**"]),
];

/// One micro-batch each, as the balance of experts is that of a micro-batch.
const WHOLE: [Layout; 8] = [
    layout(2, 1, 1, 1),
    layout(1, 2, 1, 1),
    layout(2, 2, 2, 1),
    layout(4, 1, 2, 1),
    layout(1, 1, 1, 1).stages(2, 1, PreferBackward),
    layout(2, 1, 2, 1).zero(V3),
    layout(2, 1, 2, 1).zero(V2).recompute(&[]),
    // Of eight replicas one has no row.
    layout(8, 1, 2, 1),
];

#[test]
fn experts() {
    epl_testing::in_f64(|| {
        check(&mixtral(), &MESHES);
        check(&mixtral(), &EXPERTS);
        check(&qwen3_moe(), &WHOLE);
    });
}

/// The bias with which tokens choose experts, and what it is moved by, go on under any layout.
#[test]
fn what_balances_experts_is_saved() {
    epl_testing::in_f64(|| {
        let alone = gone_on(&mixtral(), layout(1, 1, 1, 1), None);
        let load = &alone["layers.0.feed_forward.moe.bias.running_load"];
        assert!(load.iter::<f64>().sum::<f64>() > 0.0, "{load:?}");
        for (saved, then) in [
            (layout(2, 1, 2, 2), layout(1, 2, 1, 4)),
            (layout(1, 1, 1, 2).stages(2, 1, PreferBackward), layout(2, 1, 1, 1).zero(V3)),
        ] {
            let (name, error) = largest_error(&gone_on(&mixtral(), then, Some(saved)), &alone);
            assert!(error <= BOUND, "{saved:?}, then {then:?}: error {error:.1e} in {name}");
        }
    });
}

#[test]
fn meshes() {
    epl_testing::in_f64(|| {
        [gpt2(), llama(), qwen3()].iter().for_each(|model| check(model, &MESHES));
        // Of eight replicas one has no row.
        check(&qwen3(), &[layout(8, 1, 1, 1)]);
    });
}

/// One layout of each kind: what it has of its own is in layers, embeddings and head, which every layout has whole or cut by
/// heads and classes.
#[test]
fn windows_and_limits() {
    let layouts = [layout(2, 1, 1, 2).zero(V3), layout(1, 2, 1, 1), layout(2, 2, 1, 2).stages(2, 1, PreferBackward)];
    epl_testing::in_f64(|| check(&gemma2(), &layouts));
}

#[test]
fn state() {
    epl_testing::in_f64(|| {
        [gpt2(), llama(), qwen3()].iter().for_each(|model| check(model, &STATE));
    });
}
