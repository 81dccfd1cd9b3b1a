//! What stages send each other. A rank takes what a member of another stage sends in the order in which that one sends it, until
//! what it wants has come.

use std::collections::VecDeque;

use burn::tensor::DType;
use epl_comm::Operation;
use rustc_hash::FxHashSet;

use super::call::{Called, Members};
use super::list::{OpList, Purpose};
use super::protocol::PARCEL_HEAD;
use super::shapes::{CarryShape, StepShapes, TensorShape};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::schedule::{Action, ActionKind};
use crate::topology::cluster::{MemberRows, Routes, Width};

/// Of a parcel's header: what it is, and how many counts and tensors follow.
const LABEL: usize = 5;

/// A carry that enters a part, or the gradients of one that left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StageMessage {
    backward: bool,
    micro_batch: usize,
    part: usize,
}

/// What a stage sends behind one of its actions.
fn sent_after(plan: &Plan, stage: usize, action: &Action) -> Option<StageMessage> {
    let (micro_batch, part) = (action.micro_batch, plan.stages.part(stage, action.chunk));
    let (backward, part) = match action.kind {
        ActionKind::Forward => (false, Some(part + 1).filter(|next| *next < plan.stages.parts().len())),
        ActionKind::Backward => (true, part.checked_sub(1)),
    };
    Some(StageMessage { backward, micro_batch, part: part? })
}

/// How many rows of a carry travel; none: the whole carry, to or from the one counterpart.
type RowsSent = Option<usize>;

/// The links of one rank.
pub(super) struct StageTraffic<'a> {
    plan: &'a Plan,
    shapes: &'a StepShapes,
    /// The stages, and which member of their group the rank is.
    widths: Vec<Width>,
    member: usize,
    /// Whose rows are whose; none where stages have one width.
    routes: Option<&'a Routes>,
    /// What each member sends to this one, and has not been taken.
    coming: Vec<VecDeque<(StageMessage, RowsSent)>>,
    /// What was taken before it was wanted.
    arrived: FxHashSet<(usize, StageMessage)>,
    sent: Vec<usize>,
}

impl<'a> StageTraffic<'a> {
    pub fn new(plan: &'a Plan, shapes: &'a StepShapes, routes: Option<&'a Routes>) -> Result<Self> {
        let (widths, member) = (plan.mesh.widths(), plan.mesh.stage_member_at(&plan.coordinate));
        let coming = vec![VecDeque::new(); widths.last().map_or(0, |width| width.members.end)];
        let mut traffic =
            Self { plan, shapes, widths, member, routes, coming, arrived: FxHashSet::default(), sent: Vec::new() };
        let stages = &plan.stages;
        let own = |part: usize| part < stages.parts().len() && stages.of_part(part) == plan.stage();
        let mut is_neighbour = vec![false; stages.count()];
        for part in 0..stages.parts().len() {
            is_neighbour[stages.of_part(part)] |= own(part + 1) || part.checked_sub(1).is_some_and(own);
        }
        for stage in (0..stages.count()).filter(|stage| is_neighbour[*stage]) {
            for action in plan.schedule.actions(stage, stages.count(), shapes.micro_batches())? {
                if let Some(label) = sent_after(plan, stage, &action).filter(|label| own(label.part)) {
                    for (from, rows) in traffic.sources(label, stage) {
                        if rows.is_some() {
                            traffic.check_rows(label)?;
                        }
                        traffic.coming[from].push_back((label, rows));
                    }
                }
            }
        }
        Ok(traffic)
    }

    /// Tells the other stages what this one runs.
    pub fn begin(&self, ops: &mut OpList) {
        let mut told = |len: usize| ops.call(Members::Stages, Operation::AllGather, DType::I64, len);
        // How many micro-batches there are, and which samples they have.
        told(2);
        if let Some(routes) = self.routes {
            let all: Vec<_> = routes.micro_batches().map(|(_, members)| members).collect();
            let numbers = |member: usize| {
                let of = |MemberRows { rows, samples, .. }: &MemberRows| MemberRows::numbers(*rows, samples).count();
                all.iter().map(|members| of(&members[member])).sum::<usize>()
            };
            told((0..self.coming.len()).map(numbers).max().unwrap_or(0));
        }
    }

    /// What enters a part, which is not the first.
    pub fn receive_carry(&mut self, ops: &mut OpList, micro_batch: usize, part: usize) {
        if let Some(before) = part.checked_sub(1) {
            self.receive(ops, StageMessage { backward: false, micro_batch, part }, before);
        }
    }

    /// The gradients of what left a part, which is not the last.
    pub fn receive_gradients(&mut self, ops: &mut OpList, micro_batch: usize, part: usize) {
        self.receive(ops, StageMessage { backward: true, micro_batch, part }, part + 1);
    }

    pub fn send_carry(&mut self, ops: &mut OpList, micro_batch: usize, part: usize) {
        self.send(ops, StageMessage { backward: false, micro_batch, part });
    }

    pub fn send_gradients(&mut self, ops: &mut OpList, micro_batch: usize, part: usize) {
        self.send(ops, StageMessage { backward: true, micro_batch, part });
    }

    /// Waits for all that was sent.
    pub fn finish(&mut self, ops: &mut OpList) {
        self.sent.drain(..).for_each(|sent| ops.wait(sent));
    }

    /// Refuses a carry of which not every tensor has as many rows as the rank's micro-batch, as an engine does.
    fn check_rows(&self, label: StageMessage) -> Result<()> {
        let rows = self.routes.map_or(0, |routes| routes.rows(label.micro_batch, self.member));
        let tensors = &self.shapes.carry(label.micro_batch, self.boundary(label)).tensors;
        match tensors.iter().find(|tensor| tensor.dims.first() != Some(&rows)) {
            None => Ok(()),
            Some(TensorShape { dims, .. }) => Err(Error::invalid(format!(
                "a carry between stages of different widths has a tensor of shape {dims:?}, and micro-batch {} has {rows} rows on \
                 this rank; give `StepShapes::with_batch` the rows of all replicas, and carries a row for each",
                label.micro_batch
            ))),
        }
    }

    /// The members of a stage that send the rank a parcel, or rows of it.
    fn sources(&self, label: StageMessage, stage: usize) -> Vec<(usize, RowsSent)> {
        self.peers(label, stage, |routes, other, own| {
            let pieces = routes.sources(label.micro_batch, self.member, other, own, label.backward);
            pieces.into_iter().map(|piece| (piece.from, piece.mine.len())).collect()
        })
    }

    /// The members of a stage that get the rank's parcel, or rows of it.
    fn targets(&self, label: StageMessage, stage: usize) -> Vec<(usize, RowsSent)> {
        self.peers(label, stage, |routes, other, own| {
            let pieces = routes.targets(label.micro_batch, self.member, other, own, label.backward);
            pieces.into_iter().map(|(to, rows)| (to, rows.len())).collect()
        })
    }

    /// The counterpart in a stage that runs the same rows, or else those of `pieces`.
    fn peers(
        &self,
        label: StageMessage,
        stage: usize,
        pieces: impl FnOnce(&Routes, &Width, &Width) -> Vec<(usize, usize)>,
    ) -> Vec<(usize, RowsSent)> {
        let (other, own) = (&self.widths[stage], &self.widths[self.plan.stage()]);
        let Some(routes) = self.routes else { return vec![(other.members.start, None)] };
        match routes.counterpart(label.micro_batch, self.member, other, own) {
            Some(counterpart) => vec![(counterpart, None)],
            None => pieces(routes, other, own).into_iter().map(|(member, rows)| (member, Some(rows))).collect(),
        }
    }

    /// The segment that a parcel leaves, or whose exit its gradients are of.
    fn boundary(&self, label: StageMessage) -> usize {
        let part = &self.plan.stages.parts()[label.part];
        if label.backward { part.end - 1 } else { part.start - 1 }
    }

    fn receive(&mut self, ops: &mut OpList, label: StageMessage, part: usize) {
        for (from, _) in self.sources(label, self.plan.stages.of_part(part)) {
            while !self.arrived.remove(&(from, label)) {
                let Some((next, rows)) = self.coming[from].pop_front() else { return };
                for (dtype, elements) in self.messages(next, rows) {
                    ops.call(Members::Link { from, to: self.member }, Operation::Receive, dtype, elements);
                }
                self.arrived.insert((from, next));
            }
        }
    }

    fn send(&mut self, ops: &mut OpList, label: StageMessage) {
        for (to, rows) in self.targets(label, self.plan.stages.of_part(label.part)) {
            for (dtype, elements) in self.messages(label, rows) {
                let over = Members::Link { from: self.member, to };
                self.sent
                    .push(ops.start(Purpose::Parcel, Called { over, operation: Operation::Send, dtype, elements }));
            }
        }
    }

    /// The messages of a parcel: its header, then its tensors, or so many of their rows.
    fn messages(&self, label: StageMessage, rows: RowsSent) -> Vec<(DType, usize)> {
        let CarryShape { counts, tensors, gradients } = self.shapes.carry(label.micro_batch, self.boundary(label));
        // Where nothing asks for a gradient, there is not even a list of them.
        let (counts, lines): (usize, Vec<Option<&TensorShape>>) = match label.backward {
            false => (*counts, tensors.iter().map(Some).collect()),
            true => (0, tensors.iter().zip(gradients).map(|(tensor, has)| has.then_some(tensor)).collect()),
        };
        let numbers = |line: &Option<&TensorShape>| line.map_or(1, |tensor| 2 + tensor.dims.len());
        let header = LABEL + counts + lines.iter().map(numbers).sum::<usize>();
        let elements = |tensor: &TensorShape| match rows {
            None => tensor.elements(),
            Some(rows) => rows * tensor.dims[1..].iter().product::<usize>(),
        };
        let mut messages = vec![(DType::I64, PARCEL_HEAD + 1)];
        messages.extend((header > PARCEL_HEAD).then(|| (DType::I64, header - PARCEL_HEAD)));
        messages.extend(lines.into_iter().flatten().map(|tensor| (tensor.dtype, elements(tensor))));
        messages
    }
}
