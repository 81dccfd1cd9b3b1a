//! Where a step's time goes, by operation, beside what the machine could do.
//!
//! ```text
//! cargo bench --bench profile_step -- MODEL [--set hidden_size=512] [--steps 10] [--dtype bf16]
//! ```
//!
//! One line an operation, those first that take most: its share of the step, its calls, how many processors were busy meanwhile
//! (1.0: it is serial, or waits), its arguments and results, what it computes, and the share of its time that the machine would
//! need for that: the products at the speed of a large one of f32, also where they are of 16 bits, or the bytes at that of a copy,
//! whichever is more, both measured in the same run. What backward has kept is not among the bytes. An operation is a custom one of
//! EPL's layers; `model` is all else in forward and backward (Burn's own operations, the graph, casts of parameters), `norm`,
//! `reduction` and `update` are what they say, `engine` is all else in the step.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use epl_benches::speed::{copy_speed, product_speed};
use epl_benches::steps::Sizes;
use epl_comm::OperationProfile;

#[derive(Parser)]
struct Args {
    /// moe_t5, t5, bert, gpt2, llama, mixtral, vit or resnet50.
    model: String,
    #[command(flatten)]
    sizes: Sizes,
    /// Steps that count, after two that do not.
    #[arg(long, default_value_t = 10)]
    steps: usize,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The function that makes an operation, without its crate, types and closures. Where several make it in the same way, such as
/// `weighted`, that function is in its types, with what it keeps for backward.
fn short(name: &str) -> String {
    let path = |name: &str| {
        let plain = name.split("::{{closure}}").next().unwrap_or(name).split('<').next().unwrap_or(name);
        plain.trim_end_matches("::").split_once("::").map_or(plain.to_string(), |(_, rest)| rest.to_string())
    };
    match name.split_once("::Saved").and_then(|(before, _)| before.rsplit(['<', ' ', ',']).next()) {
        Some(module) => path(module),
        None => path(name),
    }
}

fn run(args: &Args) -> Result<(), String> {
    let step = args.sizes.step(&args.model, 1, args.steps + 2);
    let begin = Instant::now();
    let (mut found, steps) = step.profiled().map_err(|error| error.to_string())?;
    eprintln!("{steps} steps in {:.1} s with their model", begin.elapsed().as_secs_f64());
    let (gflops, gbytes) = (product_speed(), copy_speed());
    let all: Duration = found.iter().map(|one| one.wall).sum();
    found.sort_by_key(|one| core::cmp::Reverse(one.wall));
    let of = |one: &OperationProfile| {
        let (ms, all_ms) = (one.wall.as_secs_f64() * 1e3 / steps as f64, all.as_secs_f64() * 1e3 / steps as f64);
        let (mib, gflop) = (one.bytes as f64 / steps as f64 / (1 << 20) as f64, one.flops / steps as f64 / 1e9);
        let least = (gflop / gflops).max(mib * (1 << 20) as f64 / 1e9 / gbytes) * 1e3;
        let busy = one.cpu.as_secs_f64() / one.wall.as_secs_f64();
        println!(
            "{ms:8.2} ms {:5.1} % {:5.1} calls {busy:4.1} busy {mib:8.1} MiB {gflop:7.2} GFLOP {:5.0} % of the roofline  {} {:?}",
            100.0 * ms / all_ms,
            one.calls as f64 / steps as f64,
            100.0 * least / ms,
            short(one.name),
            one.phase,
        );
        [ms, one.cpu.as_secs_f64() * 1e3 / steps as f64, gflop]
    };
    let sums = found.iter().map(of).fold([0.0; 3], |sums, one| [0, 1, 2].map(|at| sums[at] + one[at]));
    let [ms, cpu, gflop] = sums;
    println!(
        "model={} dtype={} ms={ms:.1} busy={:.2} gflop={gflop:.1} products_share={:.2} gemm_gflops={gflops:.0} copy_gbytes={gbytes:.1}",
        args.model,
        args.sizes.dtype,
        cpu / ms,
        gflop / gflops * 1e3 / ms,
    );
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
