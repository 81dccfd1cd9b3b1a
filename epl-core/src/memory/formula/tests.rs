use super::*;
use crate::config::OffloadLevel;
use crate::memory::{ElementBytes, MemoryEstimate, Stored, Tiers};

const LEVELS: [ZeroLevel; 5] = [ZeroLevel::Off, ZeroLevel::V0, ZeroLevel::V1, ZeroLevel::V2, ZeroLevel::V3];
const PSI: u64 = 1_200_000;
const RANKS: u64 = 5;

fn inputs(zero: ZeroLevel) -> MemoryInputs {
    let parameters = vec![ParamMemory::new(PSI / 3).with_replicas(RANKS); 3];
    MemoryInputs {
        zero,
        bucket: 1000,
        segment: 100,
        two_segments: 200,
        largest: 10,
        activations: Stored::formula(7, "given"),
        ..MemoryInputs::new(parameters)
    }
}

/// Parameters, gradients, optimizer state.
fn states(estimate: &MemoryEstimate, tier: Tier) -> [u64; 3] {
    [Kind::Parameters, Kind::Gradients, Kind::OptimizerState].map(|kind| estimate.of(kind, tier))
}

#[test]
fn adam_in_f32_at_every_level_in_every_tier() {
    let whole = 4 * PSI;
    let shard = whole / RANKS;
    let expected = [
        [whole, whole, 2 * whole],
        [whole, whole, 2 * shard],
        [whole, shard, 2 * shard],
        [whole, shard, 2 * shard],
        [shard, shard, 2 * shard],
    ];
    for (zero, expected) in LEVELS.into_iter().zip(expected) {
        for level in [OffloadLevel::Off, OffloadLevel::V0, OffloadLevel::V1] {
            let tiers = Tiers::of(level);
            let estimate = MemoryInputs { tiers, ..inputs(zero) }.estimate();
            for tier in Tier::ALL {
                let here = if tier == tiers.state { expected } else { [0; 3] };
                assert_eq!(states(&estimate, tier), here, "{zero} {level} {tier}");
            }
            assert_eq!(estimate.model_states(), expected.iter().sum::<u64>(), "{zero} {level}");
            assert_eq!(estimate.of(Kind::Activations, Tier::Device), 7);
            let between = if level == OffloadLevel::Off { expected[0] + expected[2] } else { 0 };
            assert_eq!(estimate.between_steps(Tier::Device), between, "{zero} {level}");
        }
    }
}

#[test]
fn the_issue_s_formulas() {
    let sum = |zero, micro_batches| MemoryInputs { micro_batches, ..inputs(zero) }.estimate().model_states();
    for micro_batches in [1, 4] {
        assert_eq!(sum(ZeroLevel::Off, micro_batches), 16 * PSI);
        assert_eq!(sum(ZeroLevel::V0, micro_batches), 8 * PSI + 8 * PSI / RANKS);
        assert_eq!(sum(ZeroLevel::V2, micro_batches), 4 * PSI + 12 * PSI / RANKS);
        assert_eq!(sum(ZeroLevel::V3, micro_batches), 16 * PSI / RANKS);
    }
    assert_eq!(sum(ZeroLevel::V1, 1), 4 * PSI + 12 * PSI / RANKS);
    assert_eq!(sum(ZeroLevel::V1, 4), sum(ZeroLevel::V0, 4), "whole while they accumulate");
}

/// The 7.5 billion parameters on 64 devices of *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*,
/// figure 1.
#[test]
fn the_paper_s_example() {
    let parameters = vec![ParamMemory::new(7_500_000_000).with_replicas(64).with_bytes(ElementBytes::ZERO_PAPER)];
    let gigabytes = |zero| {
        let inputs = MemoryInputs { zero, ..MemoryInputs::new(parameters.clone()) };
        format!("{:.1}", inputs.estimate().model_states() as f64 / 1e9)
    };
    assert_eq!(LEVELS.map(gigabytes), ["120.0", "31.4", "16.6", "16.6", "1.9"]);
}

#[test]
fn buffers_are_what_the_engine_needs() {
    let buffers = |inputs: MemoryInputs| inputs.estimate().of(Kind::Buffers, Tier::Device);
    // A bucket's gradients and their copy; what gathered the parameters before.
    assert_eq!(LEVELS.map(|zero| buffers(inputs(zero))), [2000, 2000, 4000, 4000, 200 + 200]);
    // The sums of the step before are still there while gradients accumulate.
    let accumulates = |zero| buffers(MemoryInputs { micro_batches: 2, ..inputs(zero) });
    assert_eq!(LEVELS.map(accumulates), [2000 + 4 * PSI, 2000 + 4 * PSI, 4000, 4000, 400]);
    // Alone nothing is sent, and the flat copy is the sum.
    let alone = |zero| {
        let mut alone = inputs(zero);
        alone.parameters.iter_mut().for_each(|param| param.replicas = 1);
        buffers(alone)
    };
    assert_eq!(LEVELS.map(alone)[..4], [1000, 1000 * 2 + 30, 1000 * 2 + 30, 1000 * 2 + 30]);
    // A large tensor is updated.
    assert_eq!(buffers(MemoryInputs { largest: 5000, ..inputs(ZeroLevel::Off) }), 15_000);
    // Of which an element-wise optimizer updates the shard, another one the whole.
    let v2 = |whole_tensors| buffers(MemoryInputs { largest: 5000, whole_tensors, ..inputs(ZeroLevel::V2) });
    assert_eq!([v2(false), v2(true)], [4000, 15_000 + 400 + 2000]);
    assert_eq!(buffers(MemoryInputs { clips: true, ..inputs(ZeroLevel::Off) }), 4 * PSI);
    // Offloaded parameters visit the device, two segments at a time; copies in 16 bits are more.
    let offloaded = MemoryInputs { tiers: Tiers::of(OffloadLevel::V0), casts: 50, ..inputs(ZeroLevel::V2) };
    assert_eq!(buffers(offloaded), 200 + 50 + 4000);
}

#[test]
fn files_take_host_memory_up_to_a_bound() {
    let host = |level, resident| {
        let inputs = MemoryInputs { tiers: Tiers::of(level), resident, ..inputs(ZeroLevel::Off) };
        inputs.estimate().peak(Tier::Host)
    };
    assert_eq!(host(OffloadLevel::V1, Some(64)), 64);
    assert_eq!([host(OffloadLevel::V1, None), host(OffloadLevel::Off, Some(64))], [0, 0]);
    assert_eq!(host(OffloadLevel::V0, Some(64)), 16 * PSI, "there are no files");
}

#[test]
fn frozen_parameters_have_neither_gradient_nor_state() {
    let frozen = ParamMemory { trainable: false, ..ParamMemory::new(PSI).with_replicas(RANKS) };
    let trained = ParamMemory::new(500).with_replicas(RANKS);
    let of = |zero| {
        let estimate = MemoryInputs { zero, ..MemoryInputs::new(vec![frozen, trained]) }.estimate();
        states(&estimate, Tier::Device)
    };
    assert_eq!(of(ZeroLevel::Off), [4 * (PSI + 500), 2000, 4000]);
    assert_eq!(of(ZeroLevel::V3), [4 * (PSI + 500) / RANKS, 400, 800]);
}

#[test]
fn what_stays_whole_is_not_parked() {
    let whole = ParamMemory { parks: false, ..ParamMemory::new(500).with_replicas(RANKS) };
    let estimate = MemoryInputs { zero: ZeroLevel::V3, ..MemoryInputs::new(vec![whole]) }.estimate();
    assert_eq!(states(&estimate, Tier::Device), [2000, 400, 800]);
}

#[test]
fn the_table_has_every_number_with_its_source() {
    let text = inputs(ZeroLevel::V3).estimate().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[1].starts_with("parameters       device            960000       0.001       0.001  formula"),
        "{text}"
    );
    assert!(text.contains("7       0.000       0.000  formula       given; inside a step"), "{text}");
    assert!(lines[lines.len() - 1].contains("at the peak of a step") && !text.contains("at least"), "{text}");
    let unknown = MemoryInputs { activations: Stored::unknown("install it"), ..inputs(ZeroLevel::Off) };
    let text = unknown.estimate().to_string();
    assert!(text.contains("?           ?           ?  unknown       install it"), "{text}");
    assert!(text.contains("at the peak of a step, at least"), "{text}");
}
