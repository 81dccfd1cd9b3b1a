//! Two models on paper.

use burn::optim::AdamWConfig;
use epl::Plan;
use epl::config::ZeroLevel;
use epl::memory::{
    Amount, ElementBytes, FigureSource, MemoryEstimate, MemoryInputs, ParamMemory, StoredActivations, Table, Tier,
};
use epl::models::t5::{T5Config, T5MoeConfig};
use epl::modules::moe::Gate;
use epl::prelude::*;

/// 7.5 billion parameters on 64 devices, as ZeRO's paper counts them, and as this engine keeps them.
pub fn zero() {
    const PSI: u64 = 7_500_000_000;
    const RANKS: u64 = 64;
    let levels = [("nothing", ZeroLevel::Off), ("v0", ZeroLevel::V0), ("v1, v2", ZeroLevel::V2), ("v3", ZeroLevel::V3)];
    let accounts = [
        (
            "as the paper counts: parameters and gradients in 16 bits, a 32-bit copy and two moments",
            ElementBytes::ZERO_PAPER,
        ),
        ("as the engine keeps them: parameters, gradients and two moments in 32 bits", ElementBytes::F32),
    ];
    println!("7.5 billion parameters on 64 devices, Adam: parameters, gradients and optimizer state of one rank\n");
    for (account, bytes) in accounts {
        println!("{account}");
        for (sharded, zero) in levels {
            let parameters = vec![ParamMemory::new(PSI).with_replicas(RANKS).with_bytes(bytes)];
            let states = MemoryInputs { zero, ..MemoryInputs::new(parameters) }.estimate().model_states();
            println!("  {sharded:8} {states:>13} bytes {:>7.1} GB", states as f64 / 1e9);
        }
    }
    println!(
        "\nUnder mixed precision, too, the engine keeps parameters and gradients in 32 bits; the segments that are used have \
         16-bit copies beside them."
    );
}

const RANKS: usize = 512;
const ROWS: usize = 1;
const TOKENS: usize = 512;
/// Activations are measured on a model of this share of the width.
const NARROWER: usize = 16;
/// Bytes of a device.
const BUDGET: u64 = 32_000_000_000;

/// An encoder and a decoder of 18 blocks each, all with 512 experts, one a device. `narrower`: all widths divided by it.
fn ten_trillion(narrower: usize) -> T5Config {
    T5Config::new(32_000)
        .with_d_model(8192 / narrower)
        .with_d_ff(33_024 / narrower)
        .with_heads(64 / narrower)
        .with_d_kv(128)
        .with_encoder_layers(18)
        .with_decoder_layers(18)
        .with_moe(Some(T5MoeConfig::new(RANKS).with_gate(Gate::Switch)))
}

/// Ten trillion parameters on 512 devices of 32 GB.
pub fn moe() -> Result<()> {
    let config = Config::new()
        .with("dist.data_parallel_size", RANKS)?
        .with("dist.expert_parallel_size", RANKS)?
        .with("zero.level", "v3")?;
    let measured = activations(&config)?;
    for (what, level) in [
        ("all on the device", ""),
        ("offload.level = v0: in host memory", "v0"),
        ("offload.level = v1: in files", "v1"),
    ] {
        let mut offloaded = config.clone().with("offload.level", level)?;
        if level == "v1" {
            offloaded = offloaded.with("offload.resident_bytes", 16_000_000_000_i64)?;
        }
        let (inputs, _) = epl::launch_dry(&offloaded, 0, |epl| {
            let planned = epl.plan(|at| ten_trillion(1).init(at))?;
            if level.is_empty() {
                heading(planned.plan());
            }
            planned.memory(&AdamWConfig::new())?.inputs()
        })?;
        let estimate = MemoryInputs { activations: measured.clone(), ..inputs }.estimate();
        println!("\n{what}\n{}", Table { estimate: &estimate, ranks: RANKS as u64 });
        room(&estimate);
    }
    println!(
        "\nEach device has experts of its own, so that ZeRO divides the rest only: no replica shares an expert's state."
    );
    Ok(())
}

fn heading(plan: &Plan) {
    println!(
        "a mixture of experts of {} parameters on {RANKS} devices, of which one holds {} in its slices",
        plan.num_params(),
        plan.num_params_held()
    );
    println!("{}", plan.mesh.to_string().lines().next().unwrap_or_default());
    println!("zero.level = v3, AdamW, a micro-batch of {ROWS} row of {TOKENS} tokens a device");
}

/// Whether it fits a device, and what it needs elsewhere.
fn room(estimate: &MemoryEstimate) {
    let needed = estimate.peak(Tier::Device);
    match needed > BUDGET {
        true => println!("a device of {} has {} too few", Amount(BUDGET), Amount(needed - BUDGET)),
        false => println!("a device of {} has {} left", Amount(BUDGET), Amount(BUDGET - needed)),
    }
    for tier in [Tier::Host, Tier::Disk] {
        match estimate.peak(tier) {
            0 => {}
            needed => println!("{tier}: {} a device, eight devices {}", Amount(needed), Amount(8 * needed)),
        }
    }
}

/// What is stored for backward: measured with a narrower model, as what a token leaves grows with the widths.
fn activations(config: &Config) -> Result<StoredActivations> {
    let narrow = ten_trillion(NARROWER);
    let (stored, _) = epl::launch_dry(config, 0, |epl| {
        let planned = epl.plan(|at| narrow.init(at))?;
        let known = planned.activations([1, 2], |rows, device| super::batch(&narrow, rows, TOKENS, device))?;
        let memory = planned.memory(&AdamWConfig::new())?.with_activations(known.as_ref(), ROWS);
        Ok(memory.inputs()?.activations)
    })?;
    let wide = |bytes: Option<u64>| bytes.map(|bytes| bytes * NARROWER as u64);
    Ok(StoredActivations {
        first: wide(stored.first),
        later: wide(stored.later),
        source: FigureSource::Extrapolated,
        why: format!("{}; of a model of a {NARROWER}th of the width, times {NARROWER}", stored.why),
    })
}
