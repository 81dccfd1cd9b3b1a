//! The part of a step in which stages stand idle, beside what theory says.
//!
//! ```text
//! cargo bench --bench bubble [-- --steps 30 --forward 20]
//! ```
//!
//! Four stages, each a thread, over simulated compute: a segment sleeps forward and twice as long backward, so that any
//! machine has the cores; `--forward` is a stage's forward of a micro-batch, in milliseconds. The transport, the schedule and the engine are the real ones. Of p stages and m micro-batches
//! 1F1B leaves (p − 1) ÷ (m + p − 1) of the time idle, interleaved over v chunks (p − 1) ÷ (v·m + p − 1) (Narayanan et
//! al., 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM").

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use epl::config::PipelineStrategy;
use epl::prelude::*;
use epl_benches::quartiles::{quartiles, show};
use epl_benches::sleeping::sleeping;

const STAGES: usize = 4;
/// A stage's forward of a micro-batch, all chunks together, in milliseconds, unless it is said otherwise.
const FORWARD: usize = 20;
const WARM_UP: usize = 3;

#[derive(Module, Debug)]
struct Net {
    parts: Vec<Linear>,
}

/// The time that a rank was busy, in nanoseconds: a sleep takes a little longer than asked for.
type Busy = Arc<AtomicU64>;

/// As many segments as there are parts of stages, each as long as its share of a stage.
fn chain(chunks: usize, forward: Duration, at: &Place, busy: &Busy) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let parts = (0..STAGES * chunks).map(|_| LinearConfig::new(4, 4).init(at)).collect();
    let (forward, busy) = (forward / chunks as u32, busy.clone());
    let slow = move |rows: Tensor<2>| {
        let busy = busy.clone();
        sleeping(rows, [forward, 2 * forward], move |time| {
            busy.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        })
    };
    let own = slow.clone();
    let first = move |net: &Net, rows: &Tensor<2>| own(net.parts[0].forward(rows.clone()));
    let mut links = Chain::of(Net { parts }).first(&["parts.0"], first);
    for index in 1..STAGES * chunks {
        let (field, own) = (format!("parts.{index}"), slow.clone());
        links = links.then(&[&field], move |net, rows, _| own(net.parts[index].forward(rows)));
    }
    links.mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

/// The idle part of each step.
fn bubbles(
    (strategy, chunks): (PipelineStrategy, usize),
    forward: Duration,
    micro_batches: usize,
    steps: usize,
) -> Vec<f64> {
    let mut config = Config::new();
    config.dist.pipeline_parallel_size = STAGES;
    (config.pipeline.strategy, config.pipeline.num_chunks) = (strategy, chunks);
    config.pipeline.num_micro_batch = micro_batches;
    let mut ranks = epl::launch(&config, |epl| {
        let busy = Busy::default();
        let mut engine = Engine::build(&epl, |at| chain(chunks, forward, at, &busy), &SgdConfig::new())?;
        let rows = || Tensor::<2>::ones([2, 4], epl.place().device());
        let batch = |number: u64| MicroBatch::new(rows(), [2 * number, 2 * number + 1]);
        let step = |_| {
            epl.context().world().barrier()?;
            busy.store(0, Ordering::Relaxed);
            let begin = Instant::now();
            engine.step((0..micro_batches as u64).map(batch).collect(), 0.0)?;
            Ok(1.0 - busy.load(Ordering::Relaxed) as f64 / begin.elapsed().as_nanos() as f64)
        };
        (0..steps + WARM_UP).map(step).collect::<epl::Result<Vec<f64>>>()
    })
    .expect("the ranks sleep");
    ranks.swap_remove(0).split_off(WARM_UP)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |name: &str, default: usize| {
        let place = arguments.iter().position(|argument| argument == name);
        place.map_or(default, |place| arguments[place + 1].parse().unwrap_or_else(|_| panic!("{name} takes a number")))
    };
    let (steps, forward) = (number("--steps", 30), Duration::from_millis(number("--forward", FORWARD) as u64));
    println!(
        "{:26} {:>6} {:>13} {:>8} {:>24} {:>24}",
        "schedule", "chunks", "micro-batches", "theory", "idle", "÷ theory"
    );
    let interleaved = PipelineStrategy::PreferBackward;
    let cases = [
        (PipelineStrategy::PreferForward, 1),
        (PipelineStrategy::PreferBackward, 1),
        (PipelineStrategy::PreferBackwardOptimizer, 1),
        (interleaved, 2),
    ];
    for (strategy, chunks) in cases {
        for micro_batches in [4, 8, 16] {
            let idle = bubbles((strategy, chunks), forward, micro_batches, steps);
            let (p, m, v) = (STAGES as f64, micro_batches as f64, chunks as f64);
            let theory = (p - 1.0) / (v * m + p - 1.0);
            let ratios = idle.iter().map(|idle| idle / theory).collect();
            println!(
                "{:26} {chunks:>6} {micro_batches:>13} {theory:>8.3} {:>24} {:>24}",
                strategy.to_string(),
                show(quartiles(idle)),
                show(quartiles(ratios))
            );
        }
    }
}
