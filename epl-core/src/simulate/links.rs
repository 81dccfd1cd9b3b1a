//! What stages of one width send each other. A rank takes what a stage sends in the order in which that one sends it, until what
//! it wants has come.

use std::collections::VecDeque;

use burn::tensor::DType;
use epl_comm::Operation;
use rustc_hash::FxHashSet;

use super::call::{Called, Members};
use super::list::{OpList, Purpose};
use super::protocol::PARCEL_HEAD;
use super::shapes::{CarryShape, StepShapes, TensorShape};
use crate::error::Result;
use crate::plan::Plan;
use crate::schedule::ActionKind;

/// Of a parcel's header: what it is, and how many counts and tensors follow.
const LABEL: usize = 5;

/// A carry that enters a part, or the gradients of one that left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct StageMessage {
    backward: bool,
    micro_batch: usize,
    part: usize,
}

/// The links of one rank.
pub(super) struct StageTraffic<'a> {
    plan: &'a Plan,
    shapes: &'a StepShapes,
    /// What each stage sends to this one, and has not been taken.
    coming: Vec<VecDeque<StageMessage>>,
    /// What was taken before it was wanted.
    arrived: FxHashSet<(usize, StageMessage)>,
    sent: Vec<usize>,
}

impl<'a> StageTraffic<'a> {
    pub fn new(plan: &'a Plan, shapes: &'a StepShapes) -> Result<Self> {
        let stages = &plan.stages;
        let own = |part: usize| part < stages.parts().len() && stages.of_part(part) == plan.stage();
        let mut is_neighbour = vec![false; stages.count()];
        for part in 0..stages.parts().len() {
            is_neighbour[stages.of_part(part)] |= own(part + 1) || part.checked_sub(1).is_some_and(own);
        }
        let coming = |stage: usize| {
            let mut queue = VecDeque::new();
            if !is_neighbour[stage] {
                return Ok(queue);
            }
            for action in plan.schedule.actions(stage, stages.count(), shapes.micro_batches())? {
                let (micro_batch, part) = (action.micro_batch, stages.part(stage, action.chunk));
                let sent = match action.kind {
                    ActionKind::Forward => (part + 1 < stages.parts().len()).then(|| StageMessage {
                        backward: false,
                        micro_batch,
                        part: part + 1,
                    }),
                    ActionKind::Backward => {
                        part.checked_sub(1).map(|part| StageMessage { backward: true, micro_batch, part })
                    }
                };
                queue.extend(sent.filter(|label| own(label.part)));
            }
            Ok(queue)
        };
        let coming = (0..stages.count()).map(coming).collect::<Result<_>>()?;
        Ok(Self { plan, shapes, coming, arrived: FxHashSet::default(), sent: Vec::new() })
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

    fn receive(&mut self, ops: &mut OpList, label: StageMessage, part: usize) {
        let (from, to) = (self.plan.stages.of_part(part), self.plan.stage());
        while !self.arrived.remove(&(from, label)) {
            let Some(next) = self.coming[from].pop_front() else { return };
            for (dtype, elements) in self.messages(next) {
                ops.call(Members::Link { from, to }, Operation::Receive, dtype, elements);
            }
            self.arrived.insert((from, next));
        }
    }

    fn send(&mut self, ops: &mut OpList, label: StageMessage) {
        let (from, to) = (self.plan.stage(), self.plan.stages.of_part(label.part));
        for (dtype, elements) in self.messages(label) {
            let call = Called { over: Members::Link { from, to }, operation: Operation::Send, dtype, elements };
            self.sent.push(ops.start(Purpose::Parcel, call));
        }
    }

    /// The messages of a parcel: its header, then its tensors.
    fn messages(&self, label: StageMessage) -> Vec<(DType, usize)> {
        let part = &self.plan.stages.parts()[label.part];
        let segment = if label.backward { part.end - 1 } else { part.start - 1 };
        let CarryShape { counts, tensors, gradients } = self.shapes.carry(label.micro_batch, segment);
        // Where nothing asks for a gradient, there is not even a list of them.
        let (counts, lines): (usize, Vec<Option<&TensorShape>>) = match label.backward {
            false => (*counts, tensors.iter().map(Some).collect()),
            true => (0, tensors.iter().zip(gradients).map(|(tensor, has)| has.then_some(tensor)).collect()),
        };
        let numbers = |line: &Option<&TensorShape>| line.map_or(1, |tensor| 2 + tensor.dims.len());
        let header = LABEL + counts + lines.iter().map(numbers).sum::<usize>();
        let mut messages = vec![(DType::I64, PARCEL_HEAD + 1)];
        messages.extend((header > PARCEL_HEAD).then(|| (DType::I64, header - PARCEL_HEAD)));
        messages.extend(lines.into_iter().flatten().map(|tensor| (tensor.dtype, tensor.elements())));
        messages
    }
}
