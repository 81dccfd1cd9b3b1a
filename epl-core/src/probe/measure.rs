//! What segments store and hold, measured before a model exists: one segment at a time is filled with values.
//!
//! ```text
//! lazy model    ( )( )( )( )      no parameter has values
//!    fill           ▼
//! one segment   [ ][x][ ][ ]      forward and backward, counted; then dropped
//! ```
//!
//! Segments alike, that is with parameters and an entrance of the same shapes and types, are measured once: of two that compute
//! other things with them the first one counts. Values do not matter for memory: they are not the layers' own first values, and no
//! generator moves but for layers of Burn that draw.

use std::cmp::Ordering;
use std::convert::Infallible;
use std::time::Instant;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Gradients, Shape, Tensor, TensorData};
use epl_comm::{Event, EventKind, ThreadMemory};

use crate::error::{Error, Result};
use crate::model::carry::{Carry, CarryMapper};
use crate::model::context::{Context, Pass};
use crate::model::generator::{self, Seeds};
use crate::model::graph::{CarryGradients, Seed, Track, Untrack, collect, rows_not_zero};
use crate::model::precision::{HalfPrecision, cast, widen, widen_carry};
use crate::model::segment::Model;
use crate::params::statistics::RunningStatistics;
use crate::params::walk::{self, At, Change, Visit};
use crate::params::{ParamRecord, replaced};
use crate::plan::batch_views::BatchViews;
use crate::plan::{Plan, SegmentSplit};
use crate::probe::cache_flush::CacheFlush;
use crate::simulate::{Called, CarryShape, Members, SegmentCalls, TensorShape};

/// What one segment needs for one micro-batch, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Of the carry that enters.
    pub carry: u64,
    /// What its forward leaves for its backward, with what enters; of the last segment, with the loss.
    pub stored: u64,
    /// What its collectives gave.
    pub results: u64,
    /// What its backward holds at most beside what is stored.
    pub working: u64,
}

/// Measures segments on this thread.
pub(crate) struct Bench<'a, M> {
    /// Without values.
    pub model: &'a M,
    pub plan: &'a Plan,
    pub context: &'a Context,
    /// On which it runs.
    pub device: &'a Device,
}

/// What makes segments alike.
#[derive(Clone, PartialEq)]
struct Likeness {
    /// The shapes and types of their parameters, and which are trained, and cast in 16 bits.
    parameters: Vec<(Vec<usize>, DType, [bool; 2])>,
    entrance: CarryShape,
    is_last: bool,
    half: Option<HalfPrecision>,
    /// How it runs in slices.
    split: Option<SegmentSplit>,
    /// Where it ran forward already: what leaves, the calls, and which of the tensors that leave have a gradient; behind the last
    /// segment all.
    seen: Option<(CarryShape, Vec<Called>, Option<Vec<bool>>)>,
}

/// What enters a segment, what leaves it, and what its forward calls.
type SegmentForward<C> = (Option<C>, CarryShape, Vec<Called>);

/// What one segment calls for one micro-batch, and what leaves it.
#[derive(Clone, Debug)]
pub(crate) struct SegmentShape {
    pub calls: SegmentCalls,
    /// Which tensors of what enters get a gradient.
    pub gradients: Vec<bool>,
    pub exit: CarryShape,
    /// Of each table among its parameters, the rows whose gradient is not zero.
    pub tables: Vec<usize>,
}

/// One forward and backward of a segment.
pub(super) struct SegmentPass {
    pub shape: SegmentShape,
    /// Of the loss, behind the last segment.
    pub terms: Option<usize>,
    /// Of its forward and of its backward, without their collectives.
    pub seconds: [f64; 2],
}

/// How the segments ran for one micro-batch.
pub(crate) struct SegmentRuns<C> {
    pub shapes: Vec<SegmentShape>,
    /// Of the loss.
    pub terms: usize,
    /// By segment, the one that is alike and counts for it.
    pub counted: Vec<usize>,
    /// What entered each segment that counts.
    pub entrances: Vec<Option<C>>,
}

impl<M: Model> Bench<'_, M> {
    /// The segments that this rank's stage runs, by their numbers, on a batch of so many rows. Collective.
    pub fn measure(&self, rows: usize, batch: &M::Batch) -> Result<Vec<Option<Needs>>> {
        let all = self.walk(rows, |segment, carry| self.measure_segment(segment, carry, batch))?;
        let is_own = |segment: usize| self.plan.stages.of_segment(segment) == self.plan.stage();
        Ok(all.into_iter().enumerate().map(|(segment, needs)| is_own(segment).then_some(needs)).collect())
    }

    /// Runs each segment forward, and one of those that are alike backward, on a batch of so many rows.
    ///
    /// # Errors
    ///
    /// Where no calls are recorded.
    pub fn run(&self, rows: usize, batch: &M::Batch) -> Result<SegmentRuns<M::Carry>> {
        self.begin(rows);
        let _again = self.context.replaying();
        epl_comm::catch(|| {
            let forwards = self.forwards(batch)?;
            let (mut shapes, mut known, mut wanted) = (Vec::new(), Vec::<(Likeness, usize)>::new(), None);
            let (mut terms, mut counted) = (0, Vec::new());
            for (segment, (entrance, exit, calls)) in forwards.iter().enumerate().rev() {
                let likeness = self.likeness(segment, entrance.as_ref());
                let likeness = Likeness { seen: Some((exit.clone(), calls.clone(), wanted.clone())), ..likeness };
                let alike = known.iter().find(|(known, _)| *known == likeness && !likeness.parameters.is_empty());
                let alike = alike.map_or(segment, |(_, alike)| *alike);
                if alike == segment {
                    let pass = self.with_values(segment, |model| {
                        let batch = self.views(model, batch);
                        self.pass((segment, None), (model, &batch), entrance.clone(), wanted.as_deref())
                    })?;
                    terms = pass.terms.unwrap_or(terms);
                    known.push((likeness, segment));
                    shapes.push(pass.shape);
                } else {
                    shapes.push(SegmentShape::clone(&shapes[forwards.len() - 1 - alike]));
                }
                wanted = shapes.last().map(|shape| shape.gradients.clone());
                counted.push(alike);
            }
            shapes.reverse();
            counted.reverse();
            let entrances = forwards.into_iter().zip(&counted).enumerate();
            let entrances =
                entrances.map(|(segment, ((entrance, ..), counts))| entrance.filter(|_| *counts == segment));
            Ok(SegmentRuns { shapes, terms, entrances: entrances.collect(), counted })
        })?
    }

    /// What enters each segment, what leaves it, and what its forward calls. Each runs, as those that look alike may hand on other
    /// things; all entrances are held at once.
    fn forwards(&self, batch: &M::Batch) -> Result<Vec<SegmentForward<M::Carry>>> {
        let (mut ways, mut carry) = (Vec::new(), None::<M::Carry>);
        for segment in 0..self.plan.segments.len() {
            let (records, half) = (&self.plan.params.records, self.plan.half_in(segment));
            // Not before it is filled: what a lazy parameter asks for is shared by its clones.
            let model = filled(self.model.clone(), records, segment, half).no_grad();
            let statistics = RunningStatistics::of(&model, records, &self.plan.burn_layers.statistics);
            let batch = BatchViews::new(&model, self.plan, self.plan.half, batch);
            self.context.enter(segment);
            let enters = carry.clone().map(|carry| self.plan.enter(segment, carry));
            let forward = || self.plan.forward(self.context, &model, segment, enters, batch.of(segment));
            let forward = || self.holding(segment, forward);
            let (exit, calls) = self.context.record_calls(forward)?;
            statistics.put_into(&model, records);
            ways.push((carry.clone(), carry_shape(&exit), calls.into_iter().filter_map(called).collect()));
            carry = Some(exit.map(&mut Untrack));
        }
        Ok(ways)
    }

    /// Runs a segment's forward without a graph, in its own types. Collective where its layers are divided.
    pub fn untracked(&self, segment: usize, carry: Option<M::Carry>, batch: &M::Batch) -> M::Carry {
        let records = &self.plan.params.records;
        let model = filled(self.model.clone(), records, segment, None).no_grad();
        let statistics = RunningStatistics::of(&model, records, &self.plan.burn_layers.statistics);
        self.context.enter(segment);
        let exit = self.holding(segment, || self.plan.forward(self.context, &model, segment, carry, batch));
        statistics.put_into(&model, records);
        exit
    }

    /// A pass over so many rows begins.
    pub(super) fn begin(&self, rows: usize) {
        let samples: Vec<u64> = (0..rows as u64).collect();
        self.context.begin(Pass { step: 0, training: true, samples: samples.into(), empty: false });
    }

    /// Takes a batch of so many rows through all segments, one at a time; of segments alike the first one alone.
    fn walk<T: Clone>(
        &self,
        rows: usize,
        measure: impl Fn(usize, Option<M::Carry>) -> Result<(T, M::Carry)>,
    ) -> Result<Vec<T>> {
        self.begin(rows);
        // Layers tell nothing and move nothing.
        let _again = self.context.replaying();
        epl_comm::catch(|| {
            let (mut all, mut known, mut carry) = (Vec::new(), Vec::<(Likeness, T, M::Carry)>::new(), None::<M::Carry>);
            for segment in 0..self.plan.segments.len() {
                let likeness = self.likeness(segment, carry.as_ref());
                // What has no parameters may be any function.
                let alike = known.iter().find(|known| known.0 == likeness && !likeness.parameters.is_empty());
                let (measured, exit) = match alike {
                    Some((_, measured, exit)) => (measured.clone(), exit.clone()),
                    None => {
                        let (measured, exit) = measure(segment, carry.take())?;
                        known.push((likeness, measured.clone(), exit.clone()));
                        (measured, exit)
                    }
                };
                all.push(measured);
                carry = Some(exit);
            }
            Ok(all)
        })?
    }

    /// A segment as `f` has it, with values. What it writes, which the model shares, does not stay.
    pub(super) fn with_values<T>(&self, segment: usize, f: impl FnOnce(&M) -> Result<T>) -> Result<T> {
        let (plan, records) = (self.plan, &self.plan.params.records);
        let model = filled(self.model.clone(), records, segment, plan.half_in(segment));
        let statistics = RunningStatistics::of(&model, records, &plan.burn_layers.statistics);
        let done = f(&model)?;
        statistics.put_into(&model, records);
        Ok(done)
    }

    /// What segments read of a batch.
    pub(super) fn views<'b>(&'b self, model: &'b M, batch: &'b M::Batch) -> BatchViews<'b, M::Batch> {
        BatchViews::new(model, self.plan, self.plan.half, batch)
    }

    /// One forward and backward of a segment, whose calls are recorded; `wanted` are the tensors of its exit that have a gradient,
    /// or all. With a flush neither finds in the caches what the one before left there: in a step others run between them.
    pub(super) fn pass(
        &self,
        (segment, flush): (usize, Option<&CacheFlush>),
        (model, batch): (&M, &BatchViews<'_, M::Batch>),
        carry: Option<M::Carry>,
        wanted: Option<&[bool]>,
    ) -> Result<SegmentPass> {
        let plan = self.plan;
        self.context.enter(segment);
        let entrance = carry.map(|carry| carry.map(&mut Track));
        let enters = entrance.clone().map(|carry| plan.enter(segment, carry));
        let forward = || plan.forward(self.context, model, segment, enters, batch.of(segment));
        let forward = || self.holding(segment, forward);
        if let Some(flush) = flush {
            flush.run();
        }
        let begin = Instant::now();
        let (exit, mut forward) = self.context.record_calls(forward)?;
        let (root, terms) = match segment + 1 == plan.segments.len() {
            true => {
                let loss = || model.loss(widen_carry(exit.clone()), batch.of_loss());
                let (loss, calls) = self.context.record_calls(|| self.holding(segment, loss))?;
                forward.extend(calls);
                let count = loss.terms.len();
                (loss.terms.into_iter().map(|term| widen(term.value)).reduce(|sum, term| sum + term), Some(count))
            }
            false => (seeded(&exit, wanted), None),
        };
        let root = root.filter(Tensor::is_tracked);
        wait(self.device)?;
        let half = begin.elapsed();
        if let Some(flush) = flush {
            flush.run();
        }
        let turned = Instant::now();
        let (gradients, backward) = self.context.record_calls(|| {
            let mut gradients = root.map(|root| root.backward());
            let summed = gradients
                .as_mut()
                .map(|gradients| plan.sum_gradients(self.context, segment, (model, entrance.as_ref()), gradients));
            summed.transpose().map(|_| gradients)
        })?;
        let gradients = gradients?;
        wait(self.device)?;
        let seconds = [half.as_secs_f64() - inside(&forward), turned.elapsed().as_secs_f64() - inside(&backward)];
        let tables = match (flush, &gradients) {
            (None, Some(gradients)) => self.rows_of_tables(segment, model, gradients),
            _ => Vec::new(),
        };
        let found = match (entrance, gradients) {
            (Some(entrance), Some(mut gradients)) => collect(entrance, None::<&M>, &mut gradients),
            _ => CarryGradients::new(),
        };
        let [forward, backward] = [forward, backward].map(|events| events.into_iter().filter_map(called).collect());
        let gradients = found.iter().map(Option::is_some).collect();
        let calls = SegmentCalls { forward, backward };
        Ok(SegmentPass { shape: SegmentShape { calls, gradients, exit: carry_shape(&exit), tables }, terms, seconds })
    }

    /// Of each table among a segment's parameters, the rows whose gradient is not zero.
    fn rows_of_tables(&self, segment: usize, model: &M, gradients: &Gradients) -> Vec<usize> {
        struct CountRows<'a>(usize, &'a Gradients, &'a Context, Vec<usize>);
        impl Visit for CountRows<'_> {
            type Error = Infallible;

            fn float<const D: usize>(&mut self, at: At<'_>, param: &Param<Tensor<D>>) -> Result<(), Infallible> {
                let Self(segment, gradients, context, counts) = self;
                if at.record.sparse && at.record.segments.contains(segment) {
                    let gradient = param.base().grad(gradients).map(|gradient| gradient.flatten(1, D - 1));
                    counts.push(gradient.map_or(0, |gradient| rows_not_zero(gradient, context).len()));
                }
                Ok(())
            }
        }
        let mut counted = CountRows(segment, gradients, self.context, Vec::new());
        let Ok(()) = walk::visit(model, &self.plan.params.records, &mut counted);
        counted.3
    }

    fn likeness(&self, segment: usize, carry: Option<&M::Carry>) -> Likeness {
        let used = self.plan.params.records.iter().filter(|record| record.segments.contains(&segment));
        Likeness {
            parameters: used.map(|record| (record.shape(), record.dtype, [record.trainable, record.half])).collect(),
            entrance: carry.map(carry_shape).unwrap_or_default(),
            is_last: segment + 1 == self.plan.segments.len(),
            half: self.plan.half_in(segment),
            split: self.plan.split_of(segment).cloned(),
            seen: None,
        }
    }

    /// Returns what leaves the segment, without a graph.
    fn measure_segment(&self, segment: usize, carry: Option<M::Carry>, batch: &M::Batch) -> Result<(Needs, M::Carry)> {
        self.with_values(segment, |model| {
            let batch = self.views(model, batch);
            self.context.enter(segment);
            // What happens once, such as the allocation of a backend's own memory, happens here.
            let untracked = model.clone().no_grad();
            let entrance = carry.clone().map(|carry| self.plan.enter(segment, carry.map(&mut Untrack)));
            let warm = || self.plan.forward(self.context, &untracked, segment, entrance, batch.of(segment));
            let (left, results) = self.context.world().record(|| self.holding(segment, warm));
            drop(untracked);
            let counted = || self.count((model, &batch), segment, carry.clone());
            let counts = [counted()?, counted()?, counted()?];
            let carry = carry.as_ref().map_or(0, bytes);
            let needs = Needs {
                carry,
                stored: median(counts.iter().map(|count| count.stored).collect()) + carry,
                results: results.bytes(),
                working: median(counts.iter().map(|count| count.working).collect()),
            };
            Ok((needs, left.map(&mut Untrack)))
        })
    }

    /// Runs a part of a segment that may draw: not into the numbers of another thread, which draws first values.
    pub fn holding<T>(&self, segment: usize, f: impl FnOnce() -> T) -> T {
        match self.plan.burn_layers.draws[segment] {
            true => generator::seeded(self.device, Seeds { own: 0, after: 0 }, f),
            false => f(),
        }
    }

    /// One forward and backward of a segment, counted.
    fn count(
        &self,
        (model, batch): (&M, &BatchViews<'_, M::Batch>),
        segment: usize,
        carry: Option<M::Carry>,
    ) -> Result<Count> {
        let entrance = carry.map(|carry| carry.map(&mut Track));
        self.context.enter(segment);
        let counts = || ThreadMemory::now().ok_or_else(|| Error::invalid(NOT_COUNTED));
        let before = counts()?.live;
        ThreadMemory::look_anew();
        let enters = entrance.clone().map(|carry| self.plan.enter(segment, carry));
        let forward = || self.plan.forward(self.context, model, segment, enters, batch.of(segment));
        let exit = self.holding(segment, forward);
        let is_last = segment + 1 == self.plan.segments.len();
        let of_loss = || model.loss(widen_carry(exit.clone()), batch.of_loss());
        let loss = is_last.then(|| self.holding(segment, of_loss));
        let root = match &loss {
            Some(loss) => loss.terms.iter().map(|term| widen(term.value.clone())).reduce(|sum, term| sum + term),
            None => seeded(&exit, None),
        };
        // What leaves belongs to the next segment.
        let leaving = if is_last { 0 } else { bytes(&exit) };
        let stored = positive(counts()?.live - before).saturating_sub(leaving);
        let mut gradients = root.filter(Tensor::is_tracked).map(|root| root.backward());
        if let Some(gradients) = &mut gradients {
            self.plan.sum_gradients(self.context, segment, (model, entrance.as_ref()), gradients)?;
        }
        let most = positive(counts()?.most - before);
        drop(gradients);
        Ok(Count { stored, working: most.saturating_sub(stored + leaving) })
    }
}

/// What one forward and backward was seen to need, in bytes, without what enters.
#[derive(Clone, Copy)]
struct Count {
    stored: u64,
    working: u64,
}

/// The middle one of at least one number: of times, and of counts, since the tables of the graph that all ranks of a process share
/// grow on whichever thread comes first.
pub(crate) fn median<T: Copy + PartialOrd>(mut numbers: Vec<T>) -> T {
    numbers.sort_by(|one, other| one.partial_cmp(other).unwrap_or(Ordering::Equal));
    numbers[numbers.len() / 2]
}

/// Until a device has done what was asked for.
pub(crate) fn wait(device: &Device) -> Result<()> {
    device.sync().map_err(|error| Error::invalid(format!("{device:?}: {error:?}")))
}

/// The seconds that some collectives took.
pub(super) fn inside(calls: &[Event]) -> f64 {
    calls.iter().map(|call| (call.end - call.begin).as_secs_f64()).sum()
}

/// Why nothing is known.
pub(crate) const NOT_COUNTED: &str = "not known: this program does not count; install `#[global_allocator] static \
                                      ALLOCATOR: epl::comm::CountingAllocator = epl::comm::CountingAllocator::new();`";

/// A scalar whose backward gives the wanted tensors of a carry a gradient, or all.
fn seeded<C: Carry>(carry: &C, wanted: Option<&[bool]>) -> Option<Tensor<1>> {
    struct Ones(CarryGradients);
    impl CarryMapper for Ones {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0.push(tensor.is_tracked().then(|| tensor.clone().inner().ones_like().into_dispatch()));
            tensor
        }
    }
    let mut ones = Ones(CarryGradients::new());
    let _ = carry.clone().map(&mut ones);
    let is_wanted = |index: usize| wanted.is_none_or(|wanted| wanted.get(index) == Some(&true));
    let ones = ones.0.into_iter().enumerate().map(|(index, ones)| ones.filter(|_| is_wanted(index)));
    Seed::of(carry).root(ones.collect())
}

/// The model with values for the parameters of one segment, those that are cast in 16 bits if it computes so, and nothing in the
/// place of the others that have none.
pub(crate) fn filled<M: Module>(model: M, records: &[ParamRecord], segment: usize, half: Option<HalfPrecision>) -> M {
    struct FillSegment(usize, Option<HalfPrecision>);
    impl Change for FillSegment {
        type Error = Infallible;

        fn float<const D: usize>(
            &mut self,
            at: At<'_>,
            param: Param<Tensor<D>>,
        ) -> Result<Param<Tensor<D>>, Infallible> {
            let record = at.record;
            let dtype = self.1.filter(|_| record.half).map_or(record.dtype, HalfPrecision::dtype);
            if param.is_initialized() {
                let is_cast = dtype != record.dtype && record.segments.contains(&self.0);
                return Ok(if is_cast { replaced(param, |value| cast(value, dtype)) } else { param });
            }
            let device = param.lazy_device();
            let values: Tensor<D> = match record.segments.contains(&self.0) {
                true => Tensor::from_data(numbers(&record.shape()), (&device, dtype)),
                false => Tensor::empty(Shape::from(vec![0; D]), (&device, record.dtype)),
            };
            // A record has the shape in which a parameter is stored, which may be another one than that in which it is used.
            let id = param.id;
            let filled = param.transform_for_load(values, id);
            Ok(if device.is_autodiff() { filled.set_require_grad(record.trainable) } else { filled })
        }
    }
    let Ok(model) = walk::change(model, records, &mut FillSegment(segment, half));
    model
}

/// Numbers of about the size that first values have.
fn numbers(shape: &[usize]) -> TensorData {
    let len: usize = shape.iter().product();
    let scale = match shape {
        [.., rows, _] => (*rows as f32).sqrt().recip(),
        _ => 1.0,
    };
    let number = |index: usize| match shape.len() {
        0 | 1 => 1.0,
        _ => ((index as u32).wrapping_mul(2_654_435_761) as f32 / 2.0_f32.powi(31) - 1.0) * scale,
    };
    TensorData::new((0..len).map(number).collect::<Vec<f32>>(), Shape::from(shape.to_vec()))
}

/// The bytes of a carry.
pub(crate) fn bytes<C: Carry>(carry: &C) -> u64 {
    struct CarryBytes(u64);
    impl CarryMapper for CarryBytes {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0 += (tensor.shape().num_elements() * tensor.dtype().size()) as u64;
            tensor
        }
    }
    let mut counted = CarryBytes(0);
    let _ = carry.clone().map(&mut counted);
    counted.0
}

/// A collective of a layer.
fn called(event: Event) -> Option<Called> {
    let EventKind::Collective { group, operation, dtype, shape, .. } = event.kind else { return None };
    Some(Called { over: Members::named(&group), operation, dtype, elements: shape.num_elements() })
}

/// What a carry is of, on its way. Which of its tensors have a gradient is seen where it enters.
fn carry_shape<C: Carry>(carry: &C) -> CarryShape {
    struct DescribeCarry(CarryShape);
    impl CarryMapper for DescribeCarry {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0.tensors.push(TensorShape { dtype: tensor.dtype(), dims: tensor.dims().to_vec() });
            tensor
        }

        fn count(&mut self, _parts: usize) {
            self.0.counts += 1;
        }
    }
    let mut shapes = DescribeCarry(CarryShape::default());
    let _ = carry.clone().map(&mut shapes);
    shapes.0
}

fn positive(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}
