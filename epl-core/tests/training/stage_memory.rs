//! A rank of a pipeline never holds more than its own parameters and one tensor: while it is built, trained, evaluated,
//! shown and saved.

use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use epl_comm::ProcessGroup;
use epl_core::config::Config;
use epl_core::{Engine, MicroBatch, Result, launch};

use crate::ALLOCATOR;
use crate::layers::chain;

const STAGES: usize = 4;
const WIDTH: usize = 256;
/// The weight of a layer. One layer a stage.
const LAYER: i64 = (WIDTH * WIDTH * size_of::<f32>()) as i64;
/// Threads, plans, names, batches of a few rows.
const SMALL: i64 = LAYER / 2;
const PHASES: [&str; 4] = ["build", "step", "evaluation and display", "save"];

/// Runs something on every rank at once; the most that all of them together held in it, above `before`.
fn most_in<T>(before: i64, all: &ProcessGroup, f: impl FnOnce() -> Result<T>) -> Result<(T, i64)> {
    all.barrier()?;
    ALLOCATOR.look_anew();
    all.barrier()?;
    let value = f()?;
    all.barrier()?;
    Ok((value, ALLOCATOR.most() - before))
}

/// The most bytes in each phase of a model of as many layers as stages.
fn peaks(stages: usize) -> [i64; 4] {
    let config = Config::new().with("dist.pipeline_parallel_size", stages).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let before = ALLOCATOR.live();
    let ranks = launch(&config, |epl| {
        let all = epl.context().world().clone();
        let (mut engine, build) =
            most_in(before, &all, || Engine::build(&epl, |at| chain(stages, WIDTH, at), &SgdConfig::new()))?;
        assert_eq!(engine.plan().num_params_held(), WIDTH * WIDTH);
        let rows = || Tensor::<2>::ones([4, WIDTH], epl.place().device());
        let batch = || MicroBatch::new(rows(), [0, 1, 2, 3]);
        let (_, step) = most_in(before, &all, || engine.step(vec![batch(), batch()], 0.1))?;
        let (_, evaluation) = most_in(before, &all, || {
            engine.evaluate([Ok(batch())])?;
            Ok(format!("{} {}", engine.model().model, engine.plan()))
        })?;
        let (_, save) = most_in(before, &all, || engine.save(folder.path().join("checkpoint")))?;
        Ok([build, step, evaluation, save])
    });
    ranks.unwrap().swap_remove(0)
}

#[test]
fn a_stage_costs_what_its_own_layer_costs_alone() {
    epl_testing::alone(|| {
        // The first run also sets up what a process needs once.
        let _ = peaks(1);
        let (alone, stages) = (peaks(1), peaks(STAGES));
        println!("one layer alone: {alone:?}; {STAGES} on as many stages: {stages:?}");
        for ((phase, alone), stages) in PHASES.iter().zip(alone).zip(stages) {
            let each = alone + LAYER;
            let allowed = STAGES as i64 * each + SMALL;
            assert!(alone >= LAYER && stages >= STAGES as i64 * LAYER, "{phase}: less than the model was seen");
            assert!(stages <= allowed, "{phase}: {stages} bytes on {STAGES} stages, {alone} on one rank for one layer");
        }
    });
}
