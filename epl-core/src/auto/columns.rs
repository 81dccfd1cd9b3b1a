//! Segments, measured where layers are divided in one way.

use epl_comm::{ProcessGroup, ReduceOp};

use super::sample::Sample;
use crate::config::Config;
use crate::cost::{Line, SegmentTime};
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::memory::{Fit, SegmentActivations};
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::optim::OptimizerConfig;
use crate::params::ParamRecord;
use crate::probe::planned::LazyModel;
use crate::search::{CHOSEN, Column};
use crate::simulate::ShapesOverRows;
use crate::topology::cluster::Axis;

/// How often a segment is timed.
const REPEATS: usize = 5;

/// The configuration in which segments are measured: one stage, nothing sharded or run again, layers divided so.
pub(super) fn measuring(given: &Config, tensor: usize, expert: usize) -> Result<Config> {
    let mut config = given.clone();
    reset(&mut config, &CHOSEN)?;
    config.set("dist.data_parallel_size", expert)?;
    config.set("dist.expert_parallel_size", expert)?;
    config.set("dist.tensor_parallel_size", tensor)?;
    // What says something of several stages, of recomputation, of ranks or of a budget.
    let others = [
        "cluster.ranks",
        "pipeline.schedule_file",
        "dist.custom_pipeline_stage_id",
        "dist.pipeline_num_layers",
        "gradient_checkpoint.end_taskgraph",
        "gradient_checkpoint.check_gradients",
        "gradient_checkpoint.budget",
        "gradient_checkpoint.kept",
        "gradient_checkpoint.runs",
        "auto.margin",
        "offload.folder",
        "offload.resident_bytes",
        "offload.device_bytes",
        "offload.parameters",
        "offload.gradients",
        "offload.optimizer_state",
        "train.global_batch_size",
        "train.micro_batch_size",
    ];
    reset(&mut config, &others)?;
    Ok(config)
}

/// Gives options their defaults.
pub(super) fn reset(config: &mut Config, keys: &[&str]) -> Result<()> {
    let default = Config::default();
    for key in keys {
        if let Some(value) = default.get(key) {
            config.set(key, value)?;
        }
    }
    Ok(())
}

/// The rows with which segments are measured: those that a rank has where all are replicas, fewer and more.
pub(super) fn measured_rows(batch: usize, ranks: usize) -> Vec<usize> {
    let each = batch.div_ceil(ranks).max(1);
    let few = each.div_ceil(4);
    let many = (2 * each).min(batch).max(few + 1);
    if each == few || each == many { vec![few, many] } else { vec![few, many, each] }
}

/// A model whose layers are divided over so many tensor and expert ranks.
///
/// # Errors
///
/// When its layers cannot be.
pub(super) fn column<M: Model, O: OptimizerConfig>(
    epl: &Epl,
    (tensor, expert): (usize, usize),
    model: &mut dyn FnMut(&Place) -> M,
    optimizer: &O,
    sample: &mut Sample<'_, M::Batch>,
) -> Result<Column> {
    let thought = epl.in_thought(measuring(epl.config(), tensor, expert)?)?;
    let lazy = thought.plan(|place| model(place))?;
    check_scopes(&lazy)?;
    let rows = measured_rows(sample.rows(), epl.cluster().world_size());
    let [few, many] = [rows[0], rows[1]];
    let timed = |kind: usize, device: &_| sample.batch(rows[kind], device);
    let (shapes, seconds) = lazy.timed_shapes(&rows, &[0, 1], REPEATS, timed)?;
    let line = |segment: usize, way: usize| {
        Line::through(rows.iter().zip(&seconds).map(|(rows, seconds)| (*rows as f64, seconds[segment][way])))
    };
    let time = |segment: usize| SegmentTime { forward: line(segment, 0), backward: line(segment, 1) };
    let segments = (0..lazy.plan().segments.len()).map(time).collect();
    let activations = match epl.config().offload.device_bytes {
        Some(_) => {
            let device = thought.place().device();
            let mut batches = [sample.batch(few, device)?, sample.batch(many, device)?].into_iter();
            lazy.activations([few, many], |_, _| batches.next().expect("there is one for each number of rows"))?
        }
        None => None,
    };
    let builder = lazy.builder.laid_for(optimizer)?;
    check_divided::<O>(builder.parameters(), (tensor, expert))?;
    Ok(Column { builder, segments, shapes: ShapesOverRows::through(shapes, [few, many])?, activations })
}

/// Refuses a model whose scopes say its layout.
fn check_scopes<M: Model>(lazy: &LazyModel<M>) -> Result<()> {
    match &lazy.plan().layout {
        None => Ok(()),
        Some(layout) => Err(Error::invalid(format!(
            "auto.auto_parallel = true chooses the layout of a model without scopes, and this one opens some; leave one of both \
             out: {layout}"
        ))),
    }
}

/// Refuses to divide what no layer divides, and what the optimizer cannot update in slices.
fn check_divided<O: OptimizerConfig>(records: &[ParamRecord], (tensor, expert): (usize, usize)) -> Result<()> {
    for (axis, ranks) in [(Axis::Tensor, tensor), (Axis::Expert, expert)] {
        let mut cut = records.iter().filter(|record| record.is_cut_over(axis));
        match cut.next() {
            None if ranks > 1 => return Err(Error::invalid(format!("no layer is divided over {axis} ranks"))),
            Some(record) if !O::ELEMENT_WISE && ranks > 1 => {
                return Err(Error::invalid(format!(
                    "{} looks at whole tensors, and a rank has a slice of `{}`",
                    O::NAME,
                    record.name
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The same column on all ranks: the times of the slowest and the bytes of whoever needs the most, or why one has none.
///
/// # Errors
///
/// When a peer fails.
pub(super) fn agreed(world: &ProcessGroup, column: Result<Column>) -> Result<Result<Column>> {
    let failed = world.all_reduce_values(&[f64::from(column.is_err())], ReduceOp::Max)?;
    let mut column = match column {
        Ok(_) if failed[0] > 0.0 => return Ok(Err(Error::invalid("another rank could not measure it"))),
        Ok(column) => column,
        Err(error) => return Ok(Err(error)),
    };
    let lines = || column.segments.iter().flat_map(|time| [&time.forward, &time.backward]);
    let seconds: Vec<f64> = lines().flat_map(|line| line.points().iter().map(|(_, seconds)| *seconds)).collect();
    let mut slowest = world.all_reduce_values(&seconds, ReduceOp::Max)?.into_iter();
    let mut again = |line: &Line| Line::through(line.points().iter().map(|(rows, _)| *rows).zip(slowest.by_ref()));
    for time in &mut column.segments {
        *time = SegmentTime { forward: again(&time.forward), backward: again(&time.backward) };
    }
    let mut fits: Vec<&mut Fit> =
        column.activations.iter_mut().flat_map(|known| known.segments.iter_mut().flatten()).flat_map(fits_of).collect();
    let bytes: Vec<f64> = fits.iter().flat_map(|fit| [fit.fixed, fit.per_row]).collect();
    let most = world.all_reduce_values(&bytes, ReduceOp::Max)?;
    fits.iter_mut().zip(most.chunks(2)).for_each(|(fit, most)| (fit.fixed, fit.per_row) = (most[0], most[1]));
    Ok(Ok(column))
}

fn fits_of(bytes: &mut SegmentActivations) -> [&mut Fit; 4] {
    let SegmentActivations { carry, stored, results, working } = bytes;
    [carry, stored, results, working]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_few_many_and_what_replicas_have() {
        assert_eq!(measured_rows(128, 2), [16, 128, 64]);
        assert_eq!(measured_rows(128, 8), [4, 32, 16]);
        assert_eq!(measured_rows(1, 1), [1, 2]);
        assert_eq!(measured_rows(2, 2), [1, 2]);
        assert_eq!(measured_rows(8, 1), [2, 8]);
        assert_eq!(measured_rows(3, 8), [1, 2]);
    }
}
