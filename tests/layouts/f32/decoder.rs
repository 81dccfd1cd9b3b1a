//! Decoders in 16 bits under layouts, and run again: in f32.

use epl::config::HalfDtype::{Bf16, F16};
use epl::config::PipelineStrategy::PreferBackward;
use epl::config::ZeroLevel::V3;

use crate::decoders::{gpt2, llama, mixtral, qwen3, train};
use crate::parity::{assert_roundings, layout};

#[test]
fn in_16_bits() {
    for half in [Bf16, F16] {
        for model in [gpt2(), llama(), qwen3()] {
            let alone = train(&model, layout(1, 1, 1, 1).half(half));
            for layout in [
                layout(2, 1, 1, 2),
                layout(1, 2, 1, 1),
                layout(1, 1, 1, 2).stages(2, 1, PreferBackward),
                layout(2, 1, 1, 1).zero(V3),
            ] {
                let layout = layout.half(half);
                assert_roundings(layout, &train(&model, layout), &alone);
            }
        }
    }
}

/// With dropout; to the bit.
#[test]
fn run_again() {
    for model in [gpt2(), llama(), qwen3(), mixtral()] {
        for layout in [layout(1, 1, 1, 2), layout(2, 2, 1, 1)] {
            let (once, twice) = (train(&model, layout), train(&model, layout.recompute(&[])));
            assert_eq!(once.reports, twice.reports);
            assert_eq!(once.gradients, twice.gradients);
            assert_eq!(once.parameters, twice.parameters);
        }
    }
}
