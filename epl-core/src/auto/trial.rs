//! Layouts that are run, as what is predicted alike is told apart by running it.

use std::time::Instant;

use epl_comm::ReduceOp;

use super::sample::Sample;
use super::together::together;
use crate::config::Config;
use crate::data::BatchShard;
use crate::engine::{Engine, MicroBatch};
use crate::error::Result;
use crate::launch::Epl;
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::optim::OptimizerConfig;
use crate::probe::measure::{median, wait};

/// Steps of a layout that do not count, and that do.
const STEPS: [usize; 2] = [2, 5];

/// The median of some steps in a layout, each until the last rank is done; or why a rank cannot build its engine, and so none runs.
/// Collective.
///
/// # Errors
///
/// When a step or a peer fails.
pub(super) fn seconds<M: Model, O: OptimizerConfig>(
    epl: &Epl,
    config: &Config,
    model: &mut dyn FnMut(&Place) -> M,
    optimizer: &O,
    sample: &mut Sample<'_, M::Batch>,
) -> Result<Result<f64, String>> {
    // A trace is of the run, not of what is tried before it.
    let config = Config { profile: Config::default().profile, ..config.clone() };
    let epl = epl.with_config(config.clone())?.unwanted();
    let micro_batches = config.num_micro_batch(epl.context().mesh().replicas())?;
    let (world, shard) = (epl.world().clone(), BatchShard::of(epl.context(), micro_batches)?);
    let device = epl.place().device().clone().inner();
    let built = Engine::build(&epl, |place| model(place), optimizer);
    let mut engine = match together(&world, built, "build it")? {
        Err(error) => return Ok(Err(error.to_string())),
        Ok(engine) => engine.into_trial(),
    };
    let mut seconds = Vec::new();
    for _ in 0..STEPS.iter().sum() {
        let step = shard.rows(sample.rows()).into_iter().map(|rows| {
            let samples: Vec<u64> = rows.clone().map(|row| row as u64).collect();
            let batch = sample.batch(rows.len().max(1), epl.place().device())?;
            // Without a row of its own another one stands in.
            Ok(if rows.is_empty() { MicroBatch::stand_in(batch, [0]) } else { MicroBatch::new(batch, samples) })
        });
        let step = together(&world, step.collect::<Result<Vec<_>>>(), "make a batch, and says why")??;
        world.barrier()?;
        let begin = Instant::now();
        engine.step(step, 0.0)?;
        wait(&device)?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    Ok(Ok(median(world.all_reduce_values(&seconds[STEPS[0]..], ReduceOp::Max)?)))
}
