//! What stages send each other. A rank takes what a member of another stage sends in the order in which that one sends it, until
//! what it wants has come.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use burn::tensor::DType;
use epl_comm::Operation;
use rustc_hash::{FxHashMap, FxHashSet};

use super::call::{Called, Members};
use super::list::{OpList, Purpose};
use super::shapes::{RowsSent, StepShapes, TensorShape};
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::schedule::{Action, ActionKind};
use crate::topology::cluster::{MemberRows, ParcelLabel, Peers, Routes};

/// What a stage sends behind one of its actions.
fn sent_after(plan: &Plan, stage: usize, action: &Action) -> Option<ParcelLabel> {
    let (micro_batch, part) = (action.micro_batch, plan.stages.part(stage, action.chunk));
    let (backward, part) = match action.kind {
        ActionKind::Forward => (false, Some(part + 1).filter(|next| *next < plan.stages.parts().len())),
        ActionKind::Backward => (true, part.checked_sub(1)),
    };
    Some(ParcelLabel { backward, micro_batch, part: part? })
}

/// The links of one rank.
pub(super) struct StageTraffic<'a> {
    plan: &'a Plan,
    shapes: &'a StepShapes,
    /// Which member of the stages the rank is.
    member: usize,
    routes: &'a Routes,
    /// What each member sends to this one, and has not been taken.
    coming: Vec<VecDeque<(ParcelLabel, RowsSent)>>,
    /// What was taken before it was wanted.
    arrived: FxHashSet<(usize, ParcelLabel)>,
    sent: Vec<usize>,
    /// The calls of parcels, which micro-batches of one kind have in common.
    known: FxHashMap<ParcelKind, Rc<[Arc<Called>]>>,
}

/// What parcels have in common whose calls are the same.
#[derive(PartialEq, Eq, Hash)]
struct ParcelKind {
    from: usize,
    to: usize,
    /// The kind of its micro-batch.
    kind: usize,
    part: usize,
    backward: bool,
    rows: RowsSent,
}

impl<'a> StageTraffic<'a> {
    pub fn new(plan: &'a Plan, shapes: &'a StepShapes, routes: &'a Routes) -> Result<Self> {
        let member = plan.mesh.stage_member_at(&plan.coordinate);
        let coming = vec![VecDeque::new(); routes.widths().last().map_or(0, |width| width.members.end)];
        let (arrived, sent, known) = (FxHashSet::default(), Vec::new(), FxHashMap::default());
        let mut traffic = Self { plan, shapes, member, routes, coming, arrived, sent, known };
        let stages = &plan.stages;
        let own = |part: usize| part < stages.parts().len() && stages.of_part(part) == plan.stage();
        let mut is_neighbour = vec![false; stages.count()];
        for part in 0..stages.parts().len() {
            is_neighbour[stages.of_part(part)] |= own(part + 1) || part.checked_sub(1).is_some_and(own);
        }
        for stage in (0..stages.count()).filter(|stage| is_neighbour[*stage]) {
            for action in plan.schedule.actions(stage, stages.count(), shapes.micro_batches())? {
                if let Some(label) = sent_after(plan, stage, &action).filter(|label| own(label.part)) {
                    traffic.expect(label, stage)?;
                }
            }
        }
        Ok(traffic)
    }

    /// A stage will send the rank a parcel, or members of it rows of one.
    fn expect(&mut self, label: ParcelLabel, stage: usize) -> Result<()> {
        match self.routes.sources(label, self.member, stage) {
            Peers::Counterpart(from) => self.coming[from].push_back((label, None)),
            Peers::Rows(transfers) => {
                self.check_rows(label)?;
                for rows in transfers {
                    self.coming[rows.from].push_back((label, Some(rows.taken.len())));
                }
            }
        }
        Ok(())
    }

    /// Tells the other stages what this one runs.
    pub fn begin(&self, ops: &mut OpList) {
        let mut told = |len: usize| ops.call(Members::Stages, Operation::AllGather, DType::I64, len);
        // How many micro-batches there are, and which samples they have.
        told(2);
        if !self.routes.is_single() {
            let all: Vec<_> = self.routes.micro_batches().map(|(_, members)| members).collect();
            let numbers = |member: usize| {
                let of = |MemberRows { rows, samples, .. }: &MemberRows| MemberRows::numbers(*rows, samples).count();
                all.iter().map(|members| of(&members[member])).sum::<usize>()
            };
            told((0..self.coming.len()).map(numbers).max().unwrap_or(0));
        }
    }

    /// What enters a part; the first begins with the batch.
    pub fn receive_carry(&mut self, ops: &mut OpList, micro_batch: usize, part: usize) {
        if let Some(before) = part.checked_sub(1) {
            self.receive(ops, ParcelLabel { backward: false, micro_batch, part }, before);
        }
    }

    /// The gradients of what left a part.
    pub fn receive_gradients(&mut self, ops: &mut OpList, micro_batch: usize, part: usize) {
        self.receive(ops, ParcelLabel { backward: true, micro_batch, part }, part + 1);
    }

    pub fn send_carry(&mut self, ops: &mut OpList, micro_batch: usize, part: usize) {
        self.send(ops, ParcelLabel { backward: false, micro_batch, part });
    }

    pub fn send_gradients(&mut self, ops: &mut OpList, micro_batch: usize, part: usize) {
        self.send(ops, ParcelLabel { backward: true, micro_batch, part });
    }

    /// Waits for all that was sent.
    pub fn finish(&mut self, ops: &mut OpList) {
        self.sent.drain(..).for_each(|sent| ops.wait(sent));
    }

    /// Refuses a carry of which not every tensor has as many rows as the rank's micro-batch, as an engine does.
    fn check_rows(&self, label: ParcelLabel) -> Result<()> {
        let rows = self.routes.rows(label.micro_batch, self.member);
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

    /// The segment that a parcel leaves, or whose exit its gradients are of.
    fn boundary(&self, label: ParcelLabel) -> usize {
        let part = &self.plan.stages.parts()[label.part];
        if label.backward { part.end - 1 } else { part.start - 1 }
    }

    /// Takes a parcel that has left `part`.
    fn receive(&mut self, ops: &mut OpList, label: ParcelLabel, part: usize) {
        match self.routes.sources(label, self.member, self.plan.stages.of_part(part)) {
            Peers::Counterpart(from) => self.receive_from(ops, label, from),
            Peers::Rows(transfers) => transfers.iter().for_each(|rows| self.receive_from(ops, label, rows.from)),
        }
    }

    fn receive_from(&mut self, ops: &mut OpList, label: ParcelLabel, from: usize) {
        if self.arrived.remove(&(from, label)) {
            return;
        }
        while let Some((next, rows)) = self.coming[from].pop_front() {
            for call in &*self.calls(ops, next, (Operation::Receive, from, self.member), rows) {
                ops.call_known(call.clone());
            }
            if next == label {
                return;
            }
            self.arrived.insert((from, next));
        }
    }

    fn send(&mut self, ops: &mut OpList, label: ParcelLabel) {
        match self.routes.targets(label, self.member, self.plan.stages.of_part(label.part)) {
            Peers::Counterpart(to) => self.send_to(ops, label, (to, None)),
            Peers::Rows(transfers) => {
                transfers.iter().for_each(|rows| self.send_to(ops, label, (rows.to, Some(rows.given.len()))));
            }
        }
    }

    fn send_to(&mut self, ops: &mut OpList, label: ParcelLabel, (to, rows): (usize, RowsSent)) {
        for call in &*self.calls(ops, label, (Operation::Send, self.member, to), rows) {
            self.sent.push(ops.start_known(Purpose::Parcel, call.clone()));
        }
    }

    /// The calls of a parcel on its way from one member to another.
    fn calls(
        &mut self,
        ops: &mut OpList,
        label: ParcelLabel,
        (operation, from, to): (Operation, usize, usize),
        rows: RowsSent,
    ) -> Rc<[Arc<Called>]> {
        let ParcelLabel { backward, micro_batch, part } = label;
        let parcel = ParcelKind { from, to, kind: self.shapes.kind(micro_batch), part, backward, rows };
        if let Some(known) = self.known.get(&parcel) {
            return known.clone();
        }
        let called =
            |(dtype, elements)| ops.known(Called { over: Members::Link { from, to }, operation, dtype, elements });
        let messages = self.shapes.carry(micro_batch, self.boundary(label)).messages(backward, rows);
        let calls: Rc<[Arc<Called>]> = messages.into_iter().map(called).collect();
        self.known.insert(parcel, calls.clone());
        calls
    }
}
