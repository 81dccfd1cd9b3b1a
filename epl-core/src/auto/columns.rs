//! Segments, measured where layers are divided in one way.

use epl_comm::{ProcessGroup, ReduceOp};

use super::calibration::{Calibration, MeasuredSegments};
use super::sample::Sample;
use super::together::{all, together};
use crate::config::Config;
use crate::cost::{Line, Network, SegmentTime};
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::memory::{Activations, Fit, SegmentActivations};
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::optim::OptimizerConfig;
use crate::params::ParamRecord;
use crate::plan::builder::PlanBuilder;
use crate::plan::{Plan, SplitFinding};
use crate::probe::planned::LazyModel;
use crate::probe::timing::RowsToTime;
use crate::search::{CHOSEN, Column, SEARCH, reset, seconds_of_calls};
use crate::simulate::{ShapesOverRows, StepShapes};
use crate::stable_hash::stable_hash;
use crate::topology::cluster::{Axis, Mesh};

/// The micro-batches of a step whose shapes are asked for: of few rows, and of more.
const KINDS: [usize; 2] = [0, 1];

/// The configuration in which segments are measured: one stage, nothing sharded or run again, layers divided so. There are two replicas of
/// what experts divide, so that what layers send between replicas is seen, such as the sums of a batch norm.
pub(super) fn measuring(given: &Config, tensor: usize, expert: usize) -> Result<Config> {
    let mut config = given.clone();
    reset(&mut config, &CHOSEN)?;
    reset(&mut config, &SEARCH)?;
    if tensor > 1 {
        config.set("dist.whole_layers", given.dist.whole_layers.clone())?;
    }
    config.set("dist.data_parallel_size", 2 * expert)?;
    config.set("dist.expert_parallel_size", expert)?;
    config.set("dist.tensor_parallel_size", tensor)?;
    if tensor == 1 {
        // There is nothing to cut.
        reset(&mut config, &["auto.discover"])?;
    }
    // What says something of several stages, of recomputation, of ranks or of a budget.
    let others = [
        "cluster.ranks",
        "pipeline.num_stages",
        "pipeline.schedule_file",
        "dist.custom_pipeline_stage_id",
        "dist.pipeline_num_layers",
        "gradient_checkpoint.end_taskgraph",
        "gradient_checkpoint.check_gradients",
        "gradient_checkpoint.budget",
        "gradient_checkpoint.kept",
        "gradient_checkpoint.runs",
        "offload.folder",
        "offload.resident_bytes",
        "offload.device_bytes",
        "offload.parameters",
        "offload.gradients",
        "train.global_batch_size",
        "train.micro_batch_size",
    ];
    reset(&mut config, &others)?;
    Ok(config)
}

/// The rows with which segments are measured: those that a rank has where all are replicas, fewer and more.
pub(super) fn measured_rows(batch: usize, ranks: usize) -> Vec<usize> {
    let each = batch.div_ceil(ranks).max(1);
    let few = each.div_ceil(4);
    let many = (2 * each).min(batch).max(few + 1);
    if each == few || each == many { vec![few, many] } else { vec![few, many, each] }
}

/// A model whose layers are divided in one way, before it is measured.
pub(super) struct SurveyedModel<M> {
    lazy: LazyModel<M>,
    rows: Vec<usize>,
    /// Whether activations are to be known.
    is_bounded: bool,
    /// Where measures are kept in a file: what it is there, and its shapes.
    known_as: Option<(String, StepShapes)>,
}

/// What this rank has of a column, until all have agreed on it.
struct OwnColumn {
    key: Option<String>,
    builder: PlanBuilder,
    shapes: ShapesOverRows,
    segments: MeasuredSegments,
}

impl OwnColumn {
    /// Seconds of all segments, for as many rows as were measured.
    fn seconds(&self) -> f64 {
        let lines = self.segments.times.iter().flat_map(SegmentTime::lines);
        lines.flat_map(|line| line.points().iter().map(|(_, seconds)| *seconds)).sum()
    }
}

/// A model whose layers are divided over so many tensor and expert ranks, but for those that are whole: these, or as is given. For
/// steps of so many rows; nothing of it runs.
///
/// # Errors
///
/// When its scopes say its layout.
pub(super) fn survey<M: Model>(
    epl: &Epl,
    ((tensor, expert), whole_layers): ((usize, usize), Option<&Vec<String>>),
    model: &mut dyn FnMut(&Place) -> M,
    rows: usize,
) -> Result<SurveyedModel<M>> {
    let mut config = measuring(epl.config(), tensor, expert)?;
    if let Some(layers) = whole_layers {
        config.set("dist.whole_layers", layers.clone())?;
    }
    let thought = epl.in_thought(config)?;
    let lazy = thought.plan(|place| model(place))?;
    check_scopes(&lazy, epl.wanted().is_some() && !epl.config().searches())?;
    let rows = measured_rows(rows, epl.cluster().world_size());
    let is_bounded = epl.config().offload.device_bytes.is_some();
    Ok(SurveyedModel { lazy, rows, is_bounded, known_as: None })
}

impl<M: Model> SurveyedModel<M> {
    /// The same, laid out for an optimizer; where measures are kept in a file, it runs once, without being timed.
    ///
    /// # Errors
    ///
    /// When no layer is divided so, or the optimizer cannot be; when a segment cannot be run.
    pub fn laid_for<O: OptimizerConfig>(
        mut self,
        optimizer: &O,
        sample: &mut Sample<'_, M::Batch>,
        is_kept: bool,
    ) -> Result<Self> {
        check_divided::<O>(self.lazy.plan(), self.lazy.builder.config.dist.whole_layers.as_deref())?;
        self.lazy.builder = self.lazy.builder.laid_for(optimizer)?;
        if is_kept {
            let mut read = Vec::new();
            let ran = |ran: RowsToTime<M>| read.push(self.lazy.model.batch_tensors().shapes(&ran.batch));
            let shapes =
                self.lazy.run_once((&self.rows, &KINDS), |kind, device| sample.batch(self.rows[kind], device), ran)?;
            let key = self.key(&shapes, &read[0]);
            self.known_as = Some((key, shapes));
        }
        Ok(self)
    }

    /// What is known of its segments.
    pub fn known<'a>(&self, file: &'a Calibration) -> Option<&'a MeasuredSegments> {
        let (key, _) = self.known_as.as_ref()?;
        file.segments(key, self.lazy.plan().segments.len())
    }

    /// What its segments take, as known or else as measured.
    ///
    /// # Errors
    ///
    /// When a segment cannot be run.
    fn column(self, known: Option<&MeasuredSegments>, sample: &mut Sample<'_, M::Batch>) -> Result<OwnColumn> {
        let (shapes, segments) = match (known, &self.known_as) {
            (Some(known), Some((_, shapes))) => (shapes.clone(), known.clone()),
            _ => {
                let batch = |kind: usize, device: &_| sample.batch(self.rows[kind], device);
                let (shapes, seconds) = self.lazy.timed_shapes(&self.rows, &KINDS, batch)?;
                (
                    shapes,
                    MeasuredSegments { times: times(&self.rows, &seconds), activations: self.activations(sample)? },
                )
            }
        };
        let Self { lazy, rows, known_as, .. } = self;
        let shapes = ShapesOverRows::through(shapes, [rows[0], rows[1]])?;
        Ok(OwnColumn { key: known_as.map(|(key, _)| key), builder: lazy.builder, shapes, segments })
    }

    /// Seconds of the collectives of all segments, in a micro-batch of so many rows; 0 where it was not run.
    ///
    /// # Errors
    ///
    /// When segments call other things for more rows.
    pub fn seconds_of_calls(&self, rows: usize, calls: (&Mesh, usize, &Network)) -> Result<f64> {
        let Some((_, shapes)) = &self.known_as else { return Ok(0.0) };
        let shapes = ShapesOverRows::through(shapes.clone(), [self.rows[0], self.rows[1]])?;
        let segments = 0..self.lazy.plan().segments.len();
        Ok(segments.flat_map(|segment| seconds_of_calls(&shapes, segment, rows, calls)).sum())
    }

    fn activations(&self, sample: &mut Sample<'_, M::Batch>) -> Result<Option<Activations>> {
        if self.is_bounded { self.stored(sample) } else { Ok(None) }
    }

    /// What its segments store for backward; none where the program does not count.
    ///
    /// # Errors
    ///
    /// When a segment cannot be run.
    pub fn stored(&self, sample: &mut Sample<'_, M::Batch>) -> Result<Option<Activations>> {
        let (device, rows) = (self.lazy.place.device(), [self.rows[0], self.rows[1]]);
        let [few, many] = rows.map(|rows| sample.batch(rows, device));
        let mut batches = [few?, many?].into_iter();
        self.lazy.activations(rows, |_, _| batches.next().expect("there is one for each number of rows"))
    }

    /// What segments take is the same where this is: a model's parameters, what it reads, calls and sends for so many rows, and the
    /// options.
    fn key(&self, shapes: &StepShapes, batch: &[Vec<usize>]) -> String {
        let records = parameters(&self.lazy.builder);
        let (StepShapes { calls, carries, .. }, Self { rows, is_bounded, .. }) = (shapes, self);
        let config = self.lazy.builder.config.to_toml();
        let text = format!("{records:?} {rows:?} {is_bounded} {batch:?} {calls:?} {carries:?} {config}");
        format!("{:016x}", stable_hash(&text))
    }
}

/// What tells the parameters of a model from those of others, in what is kept in a file.
pub(super) fn parameters(builder: &PlanBuilder) -> Vec<String> {
    let of = |record: &ParamRecord| {
        let ParamRecord { name, global_shape, cuts, dtype, trainable, segments, half, .. } = record;
        format!("{name} {global_shape:?} {cuts:?} {dtype:?} {trainable} {segments:?} {half}")
    };
    builder.parameters().iter().map(of).collect()
}

/// By segment, through its seconds by rows.
fn times(rows: &[usize], seconds: &[Vec<[f64; 3]>]) -> Vec<SegmentTime> {
    let line = |segment: usize, way: usize| {
        Line::through(rows.iter().zip(seconds).map(|(rows, seconds)| (*rows as f64, seconds[segment][way])))
    };
    let time = |segment: usize| SegmentTime {
        forward: line(segment, 0),
        backward: line(segment, 1),
        untracked: line(segment, 2),
    };
    (0..seconds[0].len()).map(time).collect()
}

/// Refuses a model whose scopes say its layout: who wants a plan of it has asked for no other one.
fn check_scopes<M: Model>(lazy: &LazyModel<M>, is_planned: bool) -> Result<()> {
    match &lazy.plan().layout {
        None => Ok(()),
        Some(_) if is_planned => Err(Error::invalid("not measured: the model's scopes say its layout")),
        Some(layout) => Err(Error::invalid(format!(
            "auto.auto_parallel = true chooses the layout of a model without scopes, and this one opens some; leave one of both \
             out: {layout}"
        ))),
    }
}

/// Refuses to divide what no layer divides, and what the optimizer cannot update in slices.
fn check_divided<O: OptimizerConfig>(plan: &Plan, whole_layers: Option<&[String]>) -> Result<()> {
    for (axis, ranks) in [Axis::Tensor, Axis::Expert].map(|axis| (axis, plan.mesh.size(axis))) {
        let mut cut = plan.records().iter().filter(|record| record.is_cut_over(axis));
        match cut.next() {
            None if ranks > 1 => {
                let more = if axis == Axis::Tensor { why_whole(plan, whole_layers) } else { String::new() };
                return Err(Error::invalid(format!("no layer is divided over {axis} ranks{more}")));
            }
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

/// Why none of the layers is divided that know nothing of the tensor axis, or what to do about it.
fn why_whole(plan: &Plan, whole_layers: Option<&[String]>) -> String {
    if let Some(layers) = whole_layers {
        return format!(": dist.whole_layers = {layers:?} leaves all whole that could be; name fewer");
    }
    let whole = plan.findings().iter().enumerate().filter_map(|(segment, finding)| match finding {
        SplitFinding::Whole(why) => Some((segment, why)),
        SplitFinding::Split(_) => None,
    });
    // One without parameters says nothing.
    let is_empty = |segment| !plan.records().iter().any(|record| record.segments.contains(&segment));
    match whole.min_by_key(|(segment, _)| is_empty(*segment)) {
        None => "; auto.discover = true looks for plain segments that can be".to_string(),
        Some((segment, why)) => format!(", and no plain segment can be: {} is whole: {why}", plan.segments[segment]),
    }
}

/// The column of a model that was laid out, as it is known or else as it is measured, and for how long that was; or why there is none.
/// Collective.
///
/// # Errors
///
/// When a peer fails.
pub(super) fn measure<M: Model>(
    world: &ProcessGroup,
    surveyed: Result<SurveyedModel<M>>,
    sample: &mut Sample<'_, M::Batch>,
    known: &mut Calibration,
) -> Result<(Result<Column>, f64)> {
    // All measure, or none does.
    let is_known = all(world, surveyed.as_ref().is_ok_and(|surveyed| surveyed.known(known).is_some()))?;
    let own = surveyed.and_then(|surveyed| {
        let segments = surveyed.known(known).filter(|_| is_known);
        surveyed.column(segments, sample)
    });
    let took = own.as_ref().map_or(0.0, OwnColumn::seconds);
    let column = agreed(world, own, (known, is_known))?;
    let seconds = if !is_known && column.is_ok() { took } else { 0.0 };
    Ok((column, seconds))
}

/// The same column on all ranks: times [`scaled_to_slowest`], unless they are known; the bytes of whoever needs the most and the most rows
/// of tables; or why one has none. It is remembered.
///
/// # Errors
///
/// When a peer fails.
fn agreed(
    world: &ProcessGroup,
    own: Result<OwnColumn>,
    (known, is_known): (&mut Calibration, bool),
) -> Result<Result<Column>> {
    let OwnColumn { key, builder, mut shapes, mut segments } = match together(world, own, "measure it")? {
        Ok(own) => own,
        Err(error) => return Ok(Err(error)),
    };
    if !is_known {
        let lines = segments.times.iter().flat_map(SegmentTime::lines);
        let own: Vec<f64> = lines.flat_map(|line| line.points().iter().map(|(_, seconds)| *seconds)).collect();
        let sums = world.all_reduce_values(&own, ReduceOp::Sum)?;
        let longest = world.all_reduce_values(&[own.iter().sum()], ReduceOp::Max)?[0];
        let mut scaled = scaled_to_slowest(&sums, longest);
        let mut again = |line: &Line| Line::through(line.points().iter().map(|(rows, _)| *rows).zip(scaled.by_ref()));
        for time in &mut segments.times {
            let [forward, backward, untracked] = time.lines().map(&mut again);
            *time = SegmentTime { forward, backward, untracked };
        }
    }
    let activations = segments.activations.iter_mut();
    let mut fits: Vec<&mut Fit> =
        activations.flat_map(|known| known.segments.iter_mut().flatten()).flat_map(fits_of).collect();
    let bytes: Vec<f64> = fits.iter().flat_map(|fit| [fit.fixed, fit.per_row]).collect();
    let most = world.all_reduce_values(&bytes, ReduceOp::Max)?;
    fits.iter_mut().zip(most.chunks(2)).for_each(|(fit, most)| (fit.fixed, fit.per_row) = (most[0], most[1]));
    let mut tables = shapes.counts_of_tables();
    let counts: Vec<f64> = tables.iter().map(|count| **count as f64).collect();
    let most = world.all_reduce_values(&counts, ReduceOp::Max)?;
    tables.iter_mut().zip(most).for_each(|(count, most)| **count = most as usize);
    if let Some(key) = key {
        known.remember(key, &segments);
    }
    Ok(Ok(Column::new(builder, segments.times, shapes, segments.activations)))
}

/// Times in proportion to their sums over the ranks, which together take as `long` as those of the slowest rank. Noise of a machine
/// slows other segments on other ranks: with the slowest time of each a rank would be slower than any is.
fn scaled_to_slowest(sums: &[f64], long: f64) -> impl Iterator<Item = f64> {
    let all: f64 = sums.iter().sum();
    let factor = if all > 0.0 { long / all } else { 0.0 };
    sums.iter().map(move |sum| factor * sum)
}

fn fits_of(bytes: &mut SegmentActivations) -> [&mut Fit; 4] {
    let SegmentActivations { carry, stored, results, working } = bytes;
    [carry, stored, results, working]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_were_disturbed_in_other_segments_are_as_slow_as_one() {
        let scaled = |ranks: [[f64; 2]; 2]| {
            let sums = [0, 1].map(|segment| ranks[0][segment] + ranks[1][segment]);
            let long = ranks.map(|own| own.iter().sum()).into_iter().fold(0.0, f64::max);
            scaled_to_slowest(&sums, long).collect::<Vec<f64>>()
        };
        assert_eq!(scaled([[1.0, 3.0], [3.0, 1.0]]), [2.0, 2.0]);
        assert_eq!(scaled([[1.0, 2.0], [3.0, 6.0]]), [3.0, 6.0], "a slower device is so in all");
        assert_eq!(scaled([[0.25, 0.5]; 2]), [0.25, 0.5]);
        assert_eq!(scaled([[0.0; 2]; 2]), [0.0; 2]);
    }

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
