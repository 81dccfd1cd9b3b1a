//! What ZeRO saves: the bytes that a rank holds are those of the formula.

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use epl_comm::ProcessGroup;
use epl_core::config::{Config, ZeroLevel};
use epl_core::{Engine, MicroBatch, Result, launch};

use crate::ALLOCATOR;
use crate::layers::chain;

const LAYERS: usize = 8;
/// Odd, so that nothing divides.
const WIDTH: usize = 767;
const ROWS: usize = 2;
/// A bucket is at most a part of all gradients, by `communication.max_splits`.
const BUCKETS: f64 = 4.0;
const LAYER: f64 = (WIDTH * WIDTH * size_of::<f32>()) as f64;

/// Bytes of all ranks together, of what a run needs beside what a process needs once.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    /// With the reduced gradients, before they are applied.
    with_gradients: i64,
    /// After the update.
    between_steps: i64,
    /// In the third step.
    peak: i64,
    /// In its first half.
    accumulating: i64,
}

/// Memory that is kept for the results of later collectives is given back first, but for the peak.
fn measure(level: ZeroLevel, ranks: usize, micro_batches: usize) -> Measured {
    let mut config = Config::new().with("dist.data_parallel_size", ranks).unwrap();
    config.zero.level = level;
    let before = ALLOCATOR.live();
    let measured = launch(&config, |epl| {
        let all = epl.context().world().clone();
        let mut engine = Engine::build(&epl, |at| chain(LAYERS, WIDTH, at), &AdamWConfig::new())?;
        let rows = || Tensor::<2>::ones([ROWS, WIDTH], epl.place().device());
        let batch = |number: usize| MicroBatch::new(rows(), [2 * number as u64, 2 * number as u64 + 1]);
        let step = || (0..micro_batches).map(batch).collect::<Vec<_>>();
        // The first one makes the optimizer's state.
        engine.step(step(), 0.01)?;
        engine.step(step(), 0.01)?;
        let live = |all: &ProcessGroup| -> Result<i64> {
            all.barrier()?;
            let live = ALLOCATOR.live() - before;
            all.barrier()?;
            Ok(live)
        };
        all.trim();
        all.barrier()?;
        ALLOCATOR.look_anew();
        let accumulated = engine.accumulate(step())?;
        all.barrier()?;
        let accumulating = ALLOCATOR.most() - before;
        all.barrier()?;
        all.trim();
        let with_gradients = live(&all)?;
        engine.apply(accumulated, 0.01)?;
        all.barrier()?;
        let peak = ALLOCATOR.most() - before;
        all.barrier()?;
        all.trim();
        let held = engine.memory_usage();
        let between_steps = live(&all)?;
        assert!(held.parameters + held.optimizer_state <= between_steps as u64, "{held}");
        Ok(Measured { with_gradients, between_steps, peak, accumulating })
    });
    measured.unwrap().swap_remove(0)
}

/// What a thread keeps after its first product, for the next one: as much as the machine's second cache holds.
fn kept_by_a_thread() -> i64 {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| {
        let x = Tensor::<2>::ones([WIDTH, WIDTH], &Device::flex());
        let before = ALLOCATOR.live();
        drop(x.clone().matmul(x.clone()));
        ALLOCATOR.live() - before
    })
}

#[test]
fn bytes_are_those_of_the_formula() {
    epl_testing::alone(|| {
        // What a process needs once.
        measure(ZeroLevel::Off, 1, 1);
        // Activations, and what each thread of a product needs while it runs: all that one rank needs beside what it keeps.
        let alone = measure(ZeroLevel::Off, 1, 1);
        let threads = std::thread::available_parallelism().unwrap().get();
        let kept_by_a_thread = kept_by_a_thread() as f64;
        let of_thread = (alone.accumulating - alone.with_gradients) as f64 / threads as f64;
        let psi = LAYERS as f64 * LAYER;
        let levels = [ZeroLevel::Off, ZeroLevel::V0, ZeroLevel::V1, ZeroLevel::V2, ZeroLevel::V3];
        for (ranks, micro_batches) in [(2, 1), (2, 2), (3, 2)] {
            for level in levels {
                let n = ranks as f64;
                // In units of Ψ parameters in f32: parameters, gradients, two moments.
                let (parameters, gradients, state) = match level {
                    ZeroLevel::Off => (1.0, 1.0, 2.0),
                    ZeroLevel::V0 => (1.0, 1.0, 2.0 / n),
                    ZeroLevel::V1 | ZeroLevel::V2 => (1.0, 1.0 / n, 2.0 / n),
                    ZeroLevel::V3 => (1.0 / n, 1.0 / n, 2.0 / n),
                };
                // While gradients accumulate they are whole under v1. Above all that one bucket travels, or is updated, and
                // there are two segments: their parameters, or their gradients.
                let accumulating = if level == ZeroLevel::V1 { 1.0 - gradients } else { 0.0 };
                let segment = 1.0 / LAYERS as f64;
                let bucket = if level == ZeroLevel::V3 { segment } else { 1.0 / BUCKETS };
                let transient = accumulating + bucket + 2.0 * segment;
                let measured = measure(level, ranks, micro_batches);
                let threads = (threads / ranks).max(1) as f64;
                let each = |bytes: i64| (bytes as f64 / n - threads * kept_by_a_thread) / psi;
                let activations = of_thread * threads / psi;
                assert!(measured.peak > measured.with_gradients);
                let what = format!("zero.level = \"{level}\" on {ranks} ranks, {micro_batches} micro-batches");
                let checks = [
                    ("with gradients", each(measured.with_gradients), parameters + gradients + state, 0.02),
                    ("between steps", each(measured.between_steps), parameters + state, 0.02),
                    ("peak", each(measured.peak), parameters + gradients + state + transient + activations, 0.05),
                ];
                for (when, found, expected, bound) in checks {
                    println!("{what}, {when}: {found:.3} Ψ of {expected:.3} Ψ");
                    // What is transient is not all there at once.
                    let least = if when == "peak" { 0.0 } else { 1.0 - bound };
                    assert!(
                        (least..=1.0 + bound).contains(&(found / expected)),
                        "{what}, {when}: {found:.3} of {expected:.3}"
                    );
                }
            }
        }
    });
}
