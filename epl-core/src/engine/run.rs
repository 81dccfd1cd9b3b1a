//! One step on one stage: the actions of its schedule, one after the other.
//!
//! ```text
//!              part before                  part after
//! forward      carry ──▶ [ segments ] ──▶ carry            the tape stays, in flight
//! backward     gradient ◀── [ tape ] ◀── gradient          its gradients are added up; after the last
//!                                                          micro-batch's, buckets start
//! ```
//!
//! One stage is a pipeline too: nothing is received and nothing sent.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::time::Instant;

use burn::tensor::{Gradients, Tensor};
use epl_comm::{OperationPhase, Recording, ReduceOp, timed};

use super::accumulated::Accumulated;
use super::batches::Given;
use super::diagnostics::Diagnostics;
use super::explained::explained;
use super::flops;
use super::gradients::{Found, GradientStore};
use super::idle::Work;
use super::links::StageLinks;
use super::local_clip::LocalClip;
use super::meter::Lease;
use super::micro_batch::MicroBatch;
use super::norm::Squares;
use super::parameters::{Parameters, Seen};
use super::rank::Engine;
use super::reduce::{Reduced, Reducer};
use super::repeatable::ForwardPart;
use super::report::{Counted, TermSums};
use super::statistics::StepStatistics;
use super::tape::{Around, Start, Tape};
use super::weights;
use crate::error::{Error, Result};
use crate::model::context::{Context, Flops, NanCauses};
use crate::model::loss::{Differentiated, Loss, Term, TermWeights};
use crate::model::precision::{widen, widen_carry};
use crate::model::segment::Model;
use crate::plan::Plan;
use crate::plan::batch_views::BatchViews;
use crate::probe::measure::bytes;
use crate::schedule::{Action, ActionKind};
use crate::simulate::pieces::{Look, looks, segments};
use crate::simulate::{LOSS, NORM, SENT};

/// A step that is under way.
pub(super) struct StepRun<'a, M: Model> {
    engine: &'a Engine<M>,
    micro_batches: &'a [MicroBatch<M::Batch>],
    /// The weights of each micro-batch.
    own_weights: Vec<TermWeights>,
    /// The weights of the step.
    weights: TermWeights,
    /// What this rank was given for it.
    given: Given,
    actions: Vec<Action>,
    parameters: Parameters<'a, M>,
    /// What has gone forward and not yet backward, by micro-batch and chunk.
    in_flight: HashMap<(usize, usize), Flight<'a, M>>,
    /// The bytes that are kept for the backward of a micro-batch through a segment, where they are measured.
    kept: HashMap<(usize, usize), Vec<Lease>>,
    /// How often each segment has gone backward.
    backwards: Vec<usize>,
    links: StageLinks<'a>,
    store: GradientStore,
    reducer: Reducer<'a>,
    sums: TermSums,
    /// The micro-batches in the order in which their losses were noted.
    noted: Vec<usize>,
    statistics: StepStatistics,
    /// The floating-point operations so far; none where they are not known.
    flops: Option<f64>,
    /// What the model's last segment told, to which the loss belongs.
    last_told: (Flops, Option<usize>),
    /// The runs of segments that are run again.
    again: &'a [Range<usize>],
    /// When the step began.
    begun: Instant,
}

struct Flight<'a, M: Model> {
    batch: BatchViews<'a, M::Batch>,
    tape: Tape<'a, M>,
    end: End,
}

/// Where a part's forward has ended, and its backward begins.
enum End {
    /// At the loss; at `start` begins what is differentiated, `own` are the micro-batch's weights.
    Loss { start: Start, loss: Loss, causes: NanCauses, own: TermWeights },
    /// At the entrance of another part, which sends the gradients.
    Exit,
}

impl<'a, M: Model> StepRun<'a, M> {
    /// Begins a step from these statistics, in which the runs of segments `again` are run again. Collective over the data
    /// axis.
    pub fn new(
        engine: &'a Engine<M>,
        again: &'a [Range<usize>],
        micro_batches: &'a [MicroBatch<M::Batch>],
        mut given: Given,
        statistics: StepStatistics,
    ) -> Result<Self> {
        let begun = Instant::now();
        // Before gradients that lie away from the device are taken for the step.
        engine.count_memory();
        let mut links = engine.links(&engine.device);
        links.expect(0, micro_batches)?;
        let (own_weights, weights) =
            weights::global_weights(engine.model(), micro_batches, &mut given, &engine.context)?;
        let plan = &engine.plan;
        let actions = plan.schedule.actions(plan.stage(), plan.stages.count(), micro_batches.len())?;
        let looks: Vec<Look> = actions.iter().flat_map(|action| looks(plan, action, again)).collect();
        Ok(Self {
            engine,
            micro_batches,
            own_weights,
            weights,
            given,
            actions,
            parameters: Parameters::new(engine, engine.model(), looks),
            in_flight: HashMap::new(),
            kept: HashMap::new(),
            backwards: vec![0; engine.plan.segments.len()],
            links,
            store: GradientStore::new(&engine.diagnostics.meters.gradients),
            reducer: Reducer::new(engine),
            sums: TermSums::default(),
            noted: Vec::new(),
            statistics,
            flops: Some(0.0),
            last_told: Default::default(),
            again,
            begun,
        })
    }

    /// Does what the schedule says, and reduces the gradients. Collective.
    pub fn all(mut self) -> Result<Accumulated> {
        let Engine { plan, context, .. } = self.engine;
        let begun = Instant::now();
        for action in core::mem::take(&mut self.actions) {
            match action.kind {
                ActionKind::Forward => timed("model", OperationPhase::Forward, || self.forward(action))?,
                ActionKind::Backward => timed("model", OperationPhase::Backward, || self.backward(action))?,
            }
        }
        let work = Work { span: begun.elapsed(), waited: self.links.waited() };
        let scale = self.engine.state.loss_scale();
        let clip = LocalClip::new(plan, context, scale);
        let reduce = || self.reducer.finish(self.store, clip);
        let Reduced { store, own_norm, without } = timed("reduction", OperationPhase::Update, reduce)?;
        self.engine.count_memory();
        let sent = || context.span(|| SENT.to_string());
        let sent = (plan.stages.count() > 1).then(sent);
        self.links.finish()?;
        drop(sent);
        self.statistics.after(self.engine, self.micro_batches.iter().any(|micro_batch| !micro_batch.empty))?;
        let norm = context.span(|| NORM.to_string());
        let away = self.engine.state.away.as_ref().map(RefCell::borrow);
        let number = away.as_ref().map_or(0, |away| away.number());
        let away = away.map_or(Ok(0.0), |away| away.squared(&plan.params))?;
        // What is clipped already overflows in 16 bits alone.
        let counts = own_norm.is_none() || plan.settings.compression.is_some();
        let squares = || if counts { Squares::of_gradients(plan, &store) } else { Squares::default() };
        let squares = timed("norm", OperationPhase::Update, squares);
        let (squares, not_finite) = self.sums.settle(squares, context)?;
        drop(norm);
        let squared = if counts { (squares + away) / (scale * scale) } else { 0.0 };
        let not_finite =
            not_finite.into_iter().flat_map(|number| self.micro_batches[self.noted[number]].samples.to_vec());
        let not_finite = not_finite.collect();
        let counted = Counted { squares: squared, without: without.len(), flops: self.flops };
        let (mut report, is_any_without) = self.sums.reduce(counted, &self.weights, &self.given, context)?;
        let without = if is_any_without { without_any(plan, context, &without)? } else { BTreeSet::new() };
        if let Some(own_norm) = own_norm.filter(|_| report.grad_norm.is_finite()) {
            report.grad_norm = own_norm;
        }
        let bubble = work.bubble(context)?;
        let (begun, watch) = (self.begun, None);
        Ok(Accumulated { store, report, without, not_finite, bubble, number, loss_scale: scale, begun, watch })
    }

    fn forward(&mut self, action: Action) -> Result<()> {
        let (engine, Action { micro_batch: number, chunk, .. }) = (self.engine, action);
        let (stages, micro_batch) = (&engine.plan.stages, &self.micro_batches[number]);
        let part = stages.part(engine.plan.stage(), chunk);
        let entrance = self.links.receive_carry(number, part)?;
        engine.begin(micro_batch, true);
        let after = part + 1;
        let is_last = after == stages.parts().len();
        if is_last {
            engine.context.open_nan_causes();
        }
        let segments = segments(&engine.plan, &action);
        self.keep_carry((number, segments.start), entrance.as_ref(), 1);
        let batch = BatchViews::new(engine.model(), &engine.plan, engine.plan.half, &micro_batch.batch);
        let (again, mut pass) = (self.again, self.pass(number));
        let forward = || Tape::forward(again, &batch, segments.clone(), entrance, &mut pass);
        let (exit, tape) = explained(engine, &segments, &micro_batch.batch, forward)?;
        let end = match is_last {
            true => {
                let ran = tape.last().unwrap_or(engine.model());
                let behind = engine.plan.behind_last(ran);
                let model = behind.as_ref().unwrap_or(ran);
                explained(engine, &segments, &micro_batch.batch, || self.end(number, model, exit, batch.of_loss()))?
            }
            false => {
                self.keep_carry((number, segments.end - 1), Some(&exit), -1);
                self.links.send_carry(number, after, exit)?;
                End::Exit
            }
        };
        self.in_flight.insert((number, chunk), Flight { batch, tape, end });
        Ok(())
    }

    /// The loss of a micro-batch, and what of it is differentiated; `model` ran the last segment, if that is whole.
    fn end(&mut self, number: usize, model: &M, exit: M::Carry, batch: &M::Batch) -> Result<End> {
        let micro_batch = &self.micro_batches[number];
        let own = self.own_weights[number].clone();
        // What is handed out of 16 bits is summed in f32.
        let loss = || model.loss(widen_carry(exit), batch);
        let context = &self.engine.context;
        let loss = || context.with_flops(loss);
        let loss = || self.engine.first_repeatable(ForwardPart::Loss, number, loss);
        let span = context.span(|| format!("{LOSS}{number}"));
        let ((mut loss, told), kept) = self.engine.diagnostics.leaving(loss);
        drop(span);
        let segment = self.engine.plan.segments.len() - 1;
        self.keep((number, segment), kept);
        let (last, rows) = core::mem::take(&mut self.last_told);
        self.count(number, segment, last.and(told), rows);
        let causes = self.engine.context.take_nan_causes();
        loss.check(&own, micro_batch.empty)?;
        let scale = |name: &str, coefficient: f64, to_sum: f64| match micro_batch.empty {
            true => 0.0,
            false => {
                let weight = self.weights.get(name).unwrap_or(0.0);
                weights::seed(coefficient, to_sum, weight, self.engine.plan.settings.reduce)
            }
        };
        let start = match loss.differentiated.take() {
            Some(given) => {
                self.check_given(model)?;
                let Differentiated { name, gradients, coefficient } = *given;
                let factor = scale(name, coefficient, own.get(name).unwrap_or(0.0));
                Start::Given(Box::new(Found::Given(gradients, factor)))
            }
            None => {
                let to_sum = |term: &Term| term.to_sum(own.get(term.name).unwrap_or(0.0));
                let factor =
                    |term: &Term| scale(term.name, term.coefficient, to_sum(term)) * self.engine.state.loss_scale();
                let root = loss.terms.iter().map(|term| widen(term.value.clone()) * factor(term)).reduce(|a, b| a + b);
                Start::Root(Box::new(root.ok_or_else(|| Error::invalid("the model returned a loss without a term"))?))
            }
        };
        Ok(End::Loss { start, loss, causes, own })
    }

    /// Refuses gradients that the model gives where more is needed than them, or they are not of what the model is given.
    fn check_given(&self, model: &M) -> Result<()> {
        let refused = |why: String| {
            Err(Error::invalid(format!("the model differentiates its loss itself (`Loss::of_gradients`), and {why}")))
        };
        match self.engine.plan.half {
            _ if model.segments() > 1 => refused(format!(
                "has {} segments, of which those before the last would have no gradients; give it one",
                model.segments()
            )),
            Some(half) => refused(format!(
                "amp.level has it compute in {:?}, by a loss that is scaled; leave amp.level out",
                half.dtype()
            )),
            None => Ok(()),
        }
    }

    /// Counts the operations of a forward; a stand-in's are not of the step.
    fn count(&mut self, number: usize, segment: usize, told: Flops, rows: Option<usize>) {
        if !self.micro_batches[number].empty {
            let Engine { plan, diagnostics, .. } = self.engine;
            let of_segment = diagnostics.flops.of(plan, segment, &told, rows);
            self.flops = self.flops.zip(of_segment).map(|(sum, forward)| sum + flops::OF_STEP * forward);
        }
    }

    fn backward(&mut self, Action { micro_batch: number, chunk, .. }: Action) -> Result<()> {
        let engine = self.engine;
        let part = engine.plan.stages.part(engine.plan.stage(), chunk);
        let flight = self.in_flight.remove(&(number, chunk));
        let Flight { batch, tape, end } = flight.expect("a verified schedule goes forward before it goes backward");
        let (start, told) = match end {
            End::Loss { start, loss, causes, own } => (start, Some((loss, causes, own))),
            End::Exit => (Start::Exit(self.links.receive_gradients(number, part)?), None),
        };
        let micro_batch = &self.micro_batches[number];
        let found = tape.backward(&batch, start, &mut self.pass(number))?;
        if let Some(before) = part.checked_sub(1) {
            self.links.send_gradients(number, before, found)?;
        }
        if let Some((loss, causes, own)) = told {
            self.sums.add(loss, causes, &own, micro_batch.empty)?;
            self.noted.push(number);
        }
        Ok(())
    }

    fn pass(&mut self, number: usize) -> RunPass<'_, 'a, M> {
        RunPass { run: self, number, what: FORWARD }
    }

    /// Counts what a part of the forward of a micro-batch through a segment has left, until it has gone backward.
    fn keep(&mut self, part: (usize, usize), kept: Option<Lease>) {
        if let Some(kept) = kept {
            self.kept.entry(part).or_default().push(kept);
        }
        self.engine.count_memory();
    }

    /// Counts a carry that came from another stage, or no more one that goes there.
    fn keep_carry(&mut self, part: (usize, usize), carry: Option<&M::Carry>, sign: i64) {
        let Diagnostics { meters, measures_activations, .. } = &self.engine.diagnostics;
        let carry = carry.filter(|_| *measures_activations);
        let lease = |carry: &M::Carry| meters.activations.lease_change(sign * bytes(carry) as i64);
        self.keep(part, carry.map(lease));
    }

    /// Takes what the backward of a micro-batch through a segment left, and starts the buckets that it completes.
    fn take_gradients(
        &mut self,
        (number, segment): (usize, usize),
        model: Seen<'_, M>,
        found: Option<Found>,
    ) -> Result<()> {
        let plan = &self.engine.plan;
        if let Some(found) = found {
            self.store.collect(&*model, &plan.params.records, segment, found)?;
        }
        // What was gathered for the segment is freed before its gradients are put together.
        self.parameters.release(model);
        self.kept.remove(&(number, segment));
        self.backwards[segment] += 1;
        let is_last = self.backwards[segment] == self.micro_batches.len();
        self.reducer.after_backward(segment, is_last, &mut self.store)?;
        self.engine.count_memory();
        Ok(())
    }
}

/// The parameters that have no gradient on any rank, by the numbers of their records, of those that have none here. Collective.
fn without_any(plan: &Plan, context: &Context, without: &BTreeSet<usize>) -> Result<BTreeSet<usize>> {
    let records = plan.params.records.iter().enumerate();
    let had = records.map(|(number, record)| {
        let had = record.trainable && record.held && !without.contains(&number);
        f64::from(u8::from(had))
    });
    let had = context.world().all_reduce_values(&had.collect::<Vec<_>>(), ReduceOp::Max)?;
    Ok(without.iter().copied().filter(|number| had[*number] == 0.0).collect())
}

/// What a pass does that is no second one.
const FORWARD: &str = "forward";

/// One micro-batch's way through some segments.
struct RunPass<'r, 'a, M: Model> {
    run: &'r mut StepRun<'a, M>,
    number: usize,
    what: &'static str,
}

impl<'a, M: Model> Around<'a, M> for RunPass<'_, 'a, M> {
    fn model(&mut self, segment: usize, tracked: bool) -> Result<Seen<'a, M>> {
        let model = self.run.parameters.segment(segment, tracked)?;
        if !tracked {
            self.run.reducer.make_room(segment)?;
            self.run.parameters.ahead()?;
        }
        Ok(model)
    }

    fn forward(&mut self, segment: usize, model: &M, enters: Option<M::Carry>, batch: &M::Batch) -> M::Carry {
        let (engine, number) = (self.run.engine, self.number);
        let enters = enters.map(|carry| engine.plan.enter(segment, carry));
        let _span = engine.enter(segment, self.what, number);
        let f = || engine.plan.forward(&engine.context, model, segment, enters, batch);
        let part = ForwardPart::Segment(segment);
        let diagnostics = &engine.diagnostics;
        if self.what != FORWARD {
            let (exit, kept) = diagnostics.leaving(|| engine.first_repeatable(part, number, f));
            self.run.keep((number, segment), kept);
            return exit;
        }
        let forward = || engine.first_repeatable(part, number, || engine.context.with_flops(f));
        let ((exit, told), kept) = diagnostics.leaving(forward);
        self.run.keep((number, segment), kept);
        match segment + 1 == engine.plan.segments.len() {
            true => self.run.last_told = (told, flops::rows(&exit)),
            false => self.run.count(number, segment, told, flops::rows(&exit)),
        }
        exit
    }

    fn first<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> (T, Recording) {
        let world = self.run.engine.context.world().clone();
        world.record(|| f(self))
    }

    fn again<T>(&mut self, results: Recording, f: impl FnOnce(&mut Self) -> T) -> Result<T> {
        let Engine { context, .. } = self.run.engine;
        self.run.engine.begin(&self.run.micro_batches[self.number], true);
        let _again = context.replaying();
        self.what = "recompute";
        Ok(context.world().replay(results, || f(self))?)
    }

    fn backward(
        &mut self,
        segment: usize,
        ran: (&M, Option<&M::Carry>),
        root: Option<Tensor<1>>,
    ) -> Result<Option<Gradients>> {
        self.run.reducer.make_room(segment)?;
        self.run.parameters.ahead()?;
        let (engine, number) = (self.run.engine, self.number);
        engine.count_memory();
        let _span = engine.context.span(|| format!("backward {number} segment {segment}"));
        let mut gradients = engine.diagnostics.needing(|| root.map(|root| root.backward()));
        if let Some(gradients) = &mut gradients {
            engine.plan.sum_gradients(&engine.context, segment, ran, gradients)?;
        }
        Ok(gradients)
    }

    fn gradients(&mut self, segment: usize, model: Seen<'a, M>, found: Option<Found>) -> Result<()> {
        self.run.take_gradients((self.number, segment), model, found)
    }
}
