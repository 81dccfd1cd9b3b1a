//! All that a rank does in a step.

use std::collections::BTreeSet;
use std::ops::Range;

use burn::tensor::DType;
use epl_comm::{Operation, ReduceOp};

use super::call::Members;
use super::links::StageTraffic;
use super::list::{Op, OpList, RunKind, short};
use super::parameters::GatherAhead;
use super::pieces::{pieces, segments};
use super::protocol::{BEFORE_SAMPLES, OF_STAGE, OVER_ALL, OVER_REPLICAS};
use super::reductions::Reductions;
use super::shapes::StepShapes;
use crate::error::{Error, Result};
use crate::params::Form;
use crate::plan::Plan;
use crate::schedule::{Action, ActionKind, run_of};
use crate::topology::cluster::{Axis, Routes};

/// What the rank of a plan does in a step behind the first one, which is not skipped, of a model that hands out no outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepProgram {
    /// One after the other.
    pub ops: Vec<Op>,
}

impl StepProgram {
    /// Writes it down.
    ///
    /// # Errors
    ///
    /// When the schedule is for another number of micro-batches. Where stages have different widths: when the rows of the batch
    /// are not known ([`StepShapes::with_batch`]), or a carry between them has another number of rows than its micro-batch.
    pub fn new(plan: &Plan, shapes: &StepShapes) -> Result<Self> {
        let routes = Self::routes(plan, shapes)?;
        let actions = plan.schedule.actions(plan.stage(), plan.stages.count(), shapes.micro_batches())?;
        let mut step = Step {
            plan,
            shapes,
            ops: OpList::with_room(Self::about(plan, shapes, &actions)),
            links: StageTraffic::new(plan, shapes, &routes)?,
            parameters: GatherAhead::new(plan, &actions),
            reductions: Reductions::new(plan, shapes),
            backwards: vec![0; plan.segments.len()],
        };
        step.begin();
        for action in &actions {
            match action.kind {
                ActionKind::Forward => step.forward(action),
                ActionKind::Backward => step.backward(action),
            }
        }
        step.end();
        step.update();
        Ok(Self { ops: step.ops.list })
    }

    /// Whose rows are whose.
    fn routes(plan: &Plan, shapes: &StepShapes) -> Result<Routes> {
        let widths = plan.mesh.widths();
        if !plan.mesh.is_bridged() {
            return Ok(Routes::untold(&widths));
        }
        let Some(batch) = shapes.batch else {
            return Err(Error::invalid(
                "what stages of different widths send each other depends on the rows of a batch, which are not known; give them by \
                 `StepShapes::with_batch`",
            ));
        };
        let rows = plan.mesh.rows_of_replica(plan.mesh.replica_at(&plan.coordinate), batch)?;
        Ok(Routes::of_rows(&rows, shapes.micro_batches(), &widths))
    }

    /// About how long the list will be: runs of segments with their calls, and what is gathered for them; what stages send each
    /// other; what is reduced and updated.
    fn about(plan: &Plan, shapes: &StepShapes, actions: &[Action]) -> usize {
        let gathers = if plan.params.gathers() { 2 } else { 0 };
        // A header and a tensor come, go, and are waited for.
        let sent = if plan.stages.count() > 1 { 6 } else { 0 };
        let of = |action: &Action| {
            let calls = segments(plan, action).map(|segment| {
                let calls = shapes.calls(action.micro_batch, segment);
                let is_again = action.kind == ActionKind::Backward && run_of(&plan.recompute, segment).is_some();
                1 + usize::from(is_again) + gathers + calls.forward.len().max(calls.backward.len())
            });
            calls.sum::<usize>() + sent
        };
        let updates = 2 * plan.params.trained().count();
        actions.iter().map(of).sum::<usize>() + 4 * plan.params.buckets.len() + updates
    }
}

/// A step that is written.
struct Step<'a> {
    plan: &'a Plan,
    shapes: &'a StepShapes,
    ops: OpList,
    links: StageTraffic<'a>,
    parameters: GatherAhead<'a>,
    reductions: Reductions<'a>,
    /// How often each segment has gone backward.
    backwards: Vec<usize>,
}

impl Step<'_> {
    fn stages(&self) -> usize {
        self.plan.stages.count()
    }

    /// A sum of numbers of the host, if somebody else is there.
    fn values(&mut self, over: Members, ranks: usize, len: usize) {
        if ranks > 1 {
            self.ops.call(over, Operation::AllReduce(ReduceOp::Sum), DType::F64, len);
        }
    }

    /// What ranks were given is compared, and weights are summed.
    fn begin(&mut self) {
        if self.stages() > 1 {
            self.links.begin(&mut self.ops);
        }
        let terms = self.shapes.terms;
        self.values(
            Members::Axis(Axis::Data),
            self.plan.ranks_over(Axis::Data),
            BEFORE_SAMPLES + OVER_REPLICAS + terms,
        );
    }

    fn forward(&mut self, action: &Action) {
        let part = self.plan.stages.part(self.plan.stage(), action.chunk);
        self.links.receive_carry(&mut self.ops, action.micro_batch, part);
        for piece in pieces(segments(self.plan, action), &self.plan.recompute) {
            match run_of(&self.plan.recompute, piece.start) == Some(&piece) {
                true => piece.for_each(|segment| self.untracked(action.micro_batch, segment)),
                false => self.tracked(RunKind::Forward, action.micro_batch, piece.start),
            }
        }
        if part + 1 < self.plan.stages.parts().len() {
            self.links.send_carry(&mut self.ops, action.micro_batch, part + 1);
        }
    }

    /// A segment whose graph stays.
    fn tracked(&mut self, kind: RunKind, micro_batch: usize, segment: usize) {
        self.parameters.see(&mut self.ops, (segment, true));
        let calls = match kind {
            RunKind::Forward => &self.shapes.calls(micro_batch, segment).forward[..],
            _ => &[],
        };
        self.ops.run(kind, micro_batch, segment, calls);
    }

    /// A segment of which nothing stays.
    fn untracked(&mut self, micro_batch: usize, segment: usize) {
        let look = (segment, false);
        self.parameters.see(&mut self.ops, look);
        self.reductions.make_room(&mut self.ops, segment);
        self.parameters.ahead(&mut self.ops);
        self.ops.run(RunKind::Forward, micro_batch, segment, &self.shapes.calls(micro_batch, segment).forward);
        self.parameters.release(look);
    }

    fn backward(&mut self, action: &Action) {
        let part = self.plan.stages.part(self.plan.stage(), action.chunk);
        if part + 1 < self.plan.stages.parts().len() {
            self.links.receive_gradients(&mut self.ops, action.micro_batch, part);
        }
        let all: Vec<Range<usize>> = pieces(segments(self.plan, action), &self.plan.recompute).collect();
        for piece in all.into_iter().rev() {
            if run_of(&self.plan.recompute, piece.start) == Some(&piece) {
                piece.clone().for_each(|segment| self.tracked(RunKind::Recompute, action.micro_batch, segment));
            }
            piece.rev().for_each(|segment| self.differentiate(action.micro_batch, segment));
        }
        if let Some(before) = part.checked_sub(1) {
            self.links.send_gradients(&mut self.ops, action.micro_batch, before);
        }
    }

    /// The backward of a segment whose graph is there.
    fn differentiate(&mut self, micro_batch: usize, segment: usize) {
        self.reductions.make_room(&mut self.ops, segment);
        self.parameters.ahead(&mut self.ops);
        self.ops.run(RunKind::Backward, micro_batch, segment, &self.shapes.calls(micro_batch, segment).backward);
        self.parameters.release((segment, true));
        self.backwards[segment] += 1;
        let is_last = self.backwards[segment] == self.shapes.micro_batches();
        self.reductions.after_backward(&mut self.ops, segment, is_last);
    }

    /// Gradients, running statistics, and the report.
    fn end(&mut self) {
        self.reductions.finish(&mut self.ops);
        self.links.finish(&mut self.ops);
        self.statistics();
        self.ops.list.push(Op::Norm);
        let (stages, world) = (self.stages(), self.plan.mesh.world_size());
        self.values(Members::Axis(Axis::Pipeline), stages, 2 * self.shapes.terms);
        // The digest, the norm, gradients that there are not (a step that lacks some has one call more, which is not told here), operations, the loss and what layers count.
        self.values(Members::World, world, OVER_ALL + 3 + self.shapes.loss_terms + self.shapes.metrics);
        if stages > 1 {
            self.values(Members::World, world, OF_STAGE * stages);
        }
    }

    /// Means of running statistics, by axis and type.
    fn statistics(&mut self) {
        let (plan, records) = (self.plan, self.plan.records());
        let own: Vec<usize> = plan.statistics().collect();
        let mut kinds: Vec<((Axis, DType), usize)> = Vec::new();
        let running: BTreeSet<usize> = plan.running_statistics().collect();
        for number in running.into_iter().filter(|number| own.binary_search(number).is_ok()) {
            let record = &records[number];
            let kind = (record.reduced_over(), record.dtype);
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, elements)) => *elements += record.numel(),
                None => kinds.push((kind, record.numel())),
            }
        }
        for ((axis, dtype), elements) in kinds {
            if plan.ranks_over(axis) > 1 {
                // Sums, and how many replicas have each.
                self.ops.call(Members::Axis(axis), Operation::AllReduce(ReduceOp::Sum), dtype, 2 * elements);
            }
        }
    }

    fn update(&mut self) {
        let table = &self.plan.params;
        if table.trained().any(|unit| unit.residency.update == Form::Model) {
            self.ops.list.push(Op::Update(None));
        }
        for (number, unit) in table.trained().enumerate().filter(|(_, unit)| unit.residency.update.flat().is_some()) {
            self.ops.list.push(Op::Update(Some(short(number))));
            if !unit.residency.is_sharded() && !unit.shards.is_empty() {
                self.ops.call(Members::Gather(unit.axis), Operation::AllGather, unit.dtype, unit.sent);
            }
        }
    }
}
