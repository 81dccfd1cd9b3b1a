//! What a plan says a step needs, beside what it takes: a T5 of the size of t5-base, in several layouts.
//!
//! ```text
//! cargo bench --bench memory [-- --width 256] [--tables] [LAYOUT ...]
//! ```
//!
//! The estimate is made before a parameter is drawn; activations are measured with one and with two rows, and
//! extrapolated. Measured is what all ranks together hold at most in three steps with AdamW, after a first one, above what
//! the process held before: `÷` is the estimate over it. `between` is the same between steps, twelve seconds after the last
//! one, when memory of results that nobody wanted again has gone back.

use std::time::Duration;

use burn::data::dataloader::batcher::Batcher;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use epl::comm::CountingAllocator;
use epl::memory::{MemoryEstimate, Tier};
use epl::models::t5::{T5, T5Batch, T5Batcher, T5Config};
use epl::models::text::TokenPair;
use epl::prelude::*;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Rows of a micro-batch.
const ROWS: usize = 4;
const TOKENS: usize = 16;
const STEPS: usize = 3;

/// A layout by name: replicas, stages, slices, micro-batches, ZeRO.
type Layout = (&'static str, [usize; 4], &'static str);

const LAYOUTS: [Layout; 9] = [
    ("data-2", [2, 1, 1, 1], ""),
    ("data-2-accumulates", [2, 1, 1, 2], ""),
    ("data-2-v0", [2, 1, 1, 1], "v0"),
    ("data-2-v1-accumulates", [2, 1, 1, 2], "v1"),
    ("data-2-v2", [2, 1, 1, 1], "v2"),
    ("data-2-v3", [2, 1, 1, 1], "v3"),
    ("stages-2", [1, 2, 1, 2], ""),
    ("tensor-2", [1, 1, 2, 1], ""),
    ("stages-2-data-2", [2, 2, 1, 2], ""),
];

fn model(width: usize) -> T5Config {
    T5Config::new(8192)
        .with_d_model(width)
        .with_d_ff(4 * width)
        .with_heads(12)
        .with_d_kv(width / 12)
        .with_encoder_layers(12)
        .with_decoder_layers(12)
}

fn batch(width: usize, rows: usize, device: &Device) -> T5Batch {
    let token = |at: usize| 2 + (at * 7919 % 8000) as i64;
    let sentence = |from: usize| (from..from + TOKENS - 1).map(token).chain([1]).collect::<Vec<_>>();
    let pair = |row: usize| TokenPair { source: sentence(row * 64), target: sentence(row * 64 + 31) };
    T5Batcher::new(&model(width)).batch((0..rows).map(pair).collect(), device)
}

/// What one rank says, and what the process held: the most in a step, and between two.
struct Outcome {
    estimate: MemoryEstimate,
    most: i64,
    between: i64,
}

fn measure(width: usize, (_, [data, stages, tensor, micro_batches], zero): Layout) -> epl::Result<Vec<Outcome>> {
    let config = Config::new()
        .with("dist.data_parallel_size", data)?
        .with("dist.pipeline_parallel_size", stages)?
        .with("dist.tensor_parallel_size", tensor)?
        .with("pipeline.num_micro_batch", micro_batches)?
        .with("zero.level", zero)?;
    let before = ALLOCATOR.live();
    epl::launch(&config, |epl| {
        let model = |at: &Place| -> T5 { model(width).init(at) };
        let planned = epl.plan(model)?;
        let activations = planned.activations([1, 2], |rows, device| batch(width, rows, device))?;
        let memory = planned.memory(&AdamWConfig::new())?.with_activations(activations.as_ref(), ROWS);
        let estimate = memory.estimate()?;
        let mut engine = Engine::build(&epl, model, &AdamWConfig::new())?;
        let all = epl.context().world().clone();
        let samples = |number: usize| (0..ROWS as u64).map(|row| (number * ROWS) as u64 + row).collect::<Vec<_>>();
        let mut step = || {
            let one = |number| MicroBatch::new(batch(width, ROWS, epl.place().device()), samples(number));
            engine.step((0..micro_batches).map(one).collect(), 1e-4)
        };
        step()?;
        all.barrier()?;
        ALLOCATOR.look_anew();
        all.barrier()?;
        for _ in 0..STEPS {
            step()?;
        }
        all.barrier()?;
        let most = ALLOCATOR.most() - before;
        std::thread::sleep(Duration::from_secs(12));
        all.barrier()?;
        let between = ALLOCATOR.live() - before;
        // Nobody goes, and frees what it held, before all have looked.
        all.barrier()?;
        Ok(Outcome { estimate, most, between })
    })
}

fn main() {
    // `cargo bench` passes `--bench`.
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let width = arguments.iter().position(|argument| argument == "--width").map_or(768, |place| {
        let pair: Vec<String> = arguments.drain(place..place + 2).collect();
        pair[1].parse().expect("--width takes a number")
    });
    let tables = arguments.iter().position(|argument| argument == "--tables").map(|place| arguments.remove(place));
    println!(
        "{:22} {:>5} {:>14} {:>14} {:>6} {:>14} {:>14} {:>6}",
        "layout", "ranks", "estimate", "measured", "÷", "between, est.", "measured", "÷"
    );
    for layout in
        LAYOUTS.into_iter().filter(|layout| arguments.is_empty() || arguments.iter().any(|name| name == layout.0))
    {
        let ranks = measure(width, layout).unwrap_or_else(|error| panic!("{error}"));
        let sum = |of: fn(&MemoryEstimate) -> u64| ranks.iter().map(|rank| of(&rank.estimate)).sum::<u64>();
        let (peak, between) = (sum(|rank| rank.peak(Tier::Device)), sum(|rank| rank.between_steps(Tier::Device)));
        let (most, rest) = (ranks[0].most, ranks[0].between);
        println!(
            "{:22} {:>5} {peak:>14} {most:>14} {:>6.3} {between:>14} {rest:>14} {:>6.3}",
            layout.0,
            ranks.len(),
            peak as f64 / most as f64,
            between as f64 / rest as f64
        );
        if tables.is_some() {
            println!("{}", ranks[0].estimate);
        }
    }
}
