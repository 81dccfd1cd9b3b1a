use super::*;
use crate::config::OffloadLevel;
use crate::memory::{ElementBytes, MemoryEstimate, StepPhase, StoredActivations, Tiers};

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
        activations: StoredActivations::formula(7, "given"),
        ..MemoryInputs::new(parameters)
    }
}

/// Parameters, gradients, optimizer state.
fn states(estimate: &MemoryEstimate, tier: Tier) -> [u64; 3] {
    [MemoryKind::Parameters, MemoryKind::Gradients, MemoryKind::OptimizerState].map(|kind| {
        let here = estimate.lines.iter().filter(|line| line.kind == kind && line.tier == tier);
        here.filter_map(|line| line.bytes).sum()
    })
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
            assert_eq!(estimate.lines[3].bytes, Some(7));
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

/// Buffers of the device until the first backward is over, when one is, and in the update.
fn buffers(inputs: MemoryInputs) -> [u64; 3] {
    let lines = inputs.estimate().lines;
    let is_buffer = |line: &&MemoryLine| line.kind == MemoryKind::Buffers && line.tier == Tier::Device;
    StepPhase::ALL.map(|moment| {
        let at = lines.iter().filter(is_buffer).filter(|line| line.when.is_in(moment));
        at.filter_map(|line| line.bytes).sum()
    })
}

#[test]
fn buffers_are_what_the_engine_needs() {
    let shards = 4 * PSI / RANKS;
    // A flat copy of a bucket, its gradients, new parameters, and the shards of the step before.
    let expected = [
        [1000, 1000, 30],
        [1000 + 2000, 1000 + 2000, 2000 + 30 + 400],
        [2000 + 2000 + shards, 2000 + 2000, 2000 + 30 + 400],
        [2000 + 2000 + shards, 2000 + 2000, 2000 + 30 + 400],
        [200 + 200 + shards, 200 + 200, 30 + 40],
    ];
    assert_eq!(LEVELS.map(|zero| buffers(inputs(zero))), expected);
    // Under v1 whole gradients accumulate beside the shards of the step before.
    let accumulates = |zero| buffers(MemoryInputs { micro_batches: 2, ..inputs(zero) });
    let passes = 1000 + 2000 + shards;
    assert_eq!(accumulates(ZeroLevel::V1), [passes, passes, 2000 + 30 + 400]);
    assert_eq!(accumulates(ZeroLevel::V2), expected[3]);
    // Alone nothing is sent, and the flat copy is the sum.
    for zero in &LEVELS[..4] {
        let mut alone = inputs(*zero);
        alone.parameters.iter_mut().for_each(|param| param.replicas = 1);
        assert_eq!(buffers(alone), expected[0], "{zero}");
    }
}

#[test]
fn an_update_needs_more_for_a_large_tensor() {
    let update = |inputs: MemoryInputs| buffers(inputs)[2];
    assert_eq!(update(MemoryInputs { largest: 5000, ..inputs(ZeroLevel::Off) }), 15_000);
    // Of which an element-wise optimizer updates the shard, another one the whole.
    let v2 = |whole_tensors| update(MemoryInputs { largest: 5000, whole_tensors, ..inputs(ZeroLevel::V2) });
    assert_eq!([v2(false), v2(true)], [600 + 400 + 2000, 15_000 + 400 + 2000]);
    assert_eq!(update(MemoryInputs { clips: true, ..inputs(ZeroLevel::Off) }), 4 * PSI);
}

#[test]
fn offloaded_parameters_and_copies_in_16_bits_are_on_the_device_while_they_are_used() {
    let tiers = Tiers::of(OffloadLevel::V0);
    assert_eq!(buffers(MemoryInputs { tiers, casts: 50, ..inputs(ZeroLevel::V2) })[1], 200 + 50 + 2000);
    assert_eq!(buffers(MemoryInputs { tiers, ..inputs(ZeroLevel::Off) }), [1200, 1200, 30]);
}

#[test]
fn gradients_come_as_activations_go() {
    let peak = |stored: StoredActivations, micro_batches| {
        let inputs =
            MemoryInputs { activations: stored, micro_batches, bucket: 0, largest: 0, ..inputs(ZeroLevel::Off) };
        let estimate = inputs.estimate();
        (estimate.peak(Tier::Device) - estimate.between_steps(Tier::Device), estimate.moment(Tier::Device))
    };
    let gradients = 4 * PSI;
    let stored = |bytes| StoredActivations::formula(bytes, "");
    assert_eq!(peak(stored(1000), 1), (gradients, StepPhase::Backward));
    assert_eq!(peak(stored(gradients + 1), 1), (gradients + 1, StepPhase::Forward));
    assert_eq!(peak(stored(1000), 2), (gradients + 1000, StepPhase::Backward));
    // Of two micro-batches in flight, one is gone before the second one's gradients come.
    let pipeline = StoredActivations { first: Some(2 * gradients), later: Some(7), ..stored(0) };
    assert_eq!(peak(pipeline, 2), (2 * gradients, StepPhase::Forward));
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
        lines[1].starts_with("parameters       device            960000       0.001       0.001  formula       always"),
        "{text}"
    );
    assert!(text.contains("7       0.000       0.000  formula       forward      given"), "{text}");
    assert!(lines[lines.len() - 1].contains("peak         until the first backward is over"), "{text}");
    assert!(!text.contains("at least"), "{text}");
    let unknown = MemoryInputs { activations: StoredActivations::unknown("install it"), ..inputs(ZeroLevel::Off) };
    let text = unknown.estimate().to_string();
    assert!(text.contains("?           ?           ?  unknown       forward      install it"), "{text}");
    assert!(text.contains("is over, at least"), "{text}");
}
