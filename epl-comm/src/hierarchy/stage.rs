//! The calls that a call over several hosts is made of.

use core::cell::RefCell;
use std::sync::Arc;

use burn::tensor::Shape;

use super::numbers::Stages;
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::{Call, Operation, ReduceOp};
use crate::per_member::PerMember;
use crate::transport::Transport;

/// The member that leads, in an inner group.
pub(super) const LEADER: usize = 0;

/// Calls of one group as parts of a whole call; of no group, as this member is alone there, they move nothing.
pub(super) struct Stage<'a> {
    pub(super) group: Option<&'a dyn Transport>,
    pub(super) whole: &'a Arc<Call>,
    /// Those that numbers were taken for in the group, and that have not been made yet.
    pub(super) due: &'a RefCell<Stages>,
}

impl Stage<'_> {
    pub(super) fn all_reduce(&self, buffer: Buffer, op: ReduceOp) -> Result<Buffer> {
        self.call(Operation::AllReduce(op), buffer, |call| call)
    }

    pub(super) fn reduce(&self, buffer: Buffer, op: ReduceOp, root: usize) -> Result<Buffer> {
        self.call(Operation::Reduce { op, root }, buffer, |call| call)
    }

    pub(super) fn reduce_scatter(&self, buffer: Buffer, op: ReduceOp, send: PerMember) -> Result<Buffer> {
        self.call(Operation::ReduceScatter(op), buffer, |call| Call { dim: Some(0), send, ..call })
    }

    pub(super) fn broadcast(&self, buffer: Buffer, root: usize) -> Result<Buffer> {
        self.call(Operation::Broadcast { root }, buffer, |call| call)
    }

    pub(super) fn scatter(&self, buffer: Buffer, root: usize, send: PerMember) -> Result<Buffer> {
        self.call(Operation::Scatter { root }, buffer, |call| Call { dim: Some(0), send, ..call })
    }

    pub(super) fn gather(&self, buffer: Buffer, root: usize, receive: PerMember) -> Result<Buffer> {
        self.call(Operation::Gather { root }, buffer, |call| Call { dim: Some(0), receive, ..call })
    }

    pub(super) fn all_gather(&self, buffer: Buffer, receive: PerMember) -> Result<Buffer> {
        self.call(Operation::AllGather, buffer, |call| Call { dim: Some(0), receive, ..call })
    }

    pub(super) fn all_to_all(&self, buffer: Buffer, send: PerMember, receive: PerMember) -> Result<Buffer> {
        self.call(Operation::AllToAll, buffer, |call| Call { dim: Some(0), split_dim: Some(0), send, receive, ..call })
    }

    pub(super) fn barrier(&self) -> Result<()> {
        self.call(Operation::Barrier, Buffer::empty(), |call| call).map(drop)
    }

    /// From one member to the leader: what the leader gets, and everybody else's own.
    pub(super) fn bring(&self, buffer: Buffer, from: usize) -> Result<Buffer> {
        let Some(group) = self.group.filter(|_| from != LEADER) else { return Ok(buffer) };
        let (me, size, len) = (group.member(), group.members().len(), buffer.num_elements());
        let given = if me == from { buffer.clone() } else { nothing_like(&buffer) };
        let receive = (0..size).map(|member| if member == from { len } else { 0 }).collect();
        let brought = self.gather(given, LEADER, receive)?;
        Ok(if me == LEADER { brought } else { buffer })
    }

    /// From the leader, whose buffer is cut into `widths`, its part to each member.
    pub(super) fn hand_out(&self, buffer: Buffer, widths: &PerMember) -> Result<Buffer> {
        let Some(group) = self.group else { return Ok(buffer) };
        let (me, size) = (group.member(), group.members().len());
        let none = PerMember::same(0, size);
        let (given, send) = match me {
            LEADER => (buffer, widths.clone()),
            _ => (nothing_like(&buffer), none),
        };
        let receive = (0..size).map(|member| if member == LEADER { widths[me] } else { 0 }).collect();
        self.all_to_all(given, send, receive)
    }

    /// The leader's buffer, of `len` elements, to all members.
    pub(super) fn share(&self, buffer: Buffer, len: usize) -> Result<Buffer> {
        let Some(group) = self.group else { return Ok(buffer) };
        let given = if group.member() == LEADER { buffer } else { nothing_like(&buffer) };
        let receive = (0..group.members().len()).map(|member| if member == LEADER { len } else { 0 }).collect();
        self.all_gather(given, receive)
    }

    fn call(&self, operation: Operation, buffer: Buffer, fill: impl FnOnce(Call) -> Call) -> Result<Buffer> {
        let Some(group) = self.group else { return Ok(buffer) };
        let (due, sequence) = self.due.borrow_mut().next().expect("a number was taken for every stage");
        debug_assert_eq!(operation, due, "of {}", self.whole);
        let new = Call {
            sequence,
            // A stage of a stage is one of the call that a caller has made.
            part_of: Some(self.whole.part_of.as_ref().unwrap_or(self.whole).clone()),
            ..Call::new(operation, buffer.dtype(), Shape::new([buffer.num_elements()]))
        };
        group.run(Box::new(fill(new)), buffer)
    }
}

/// Nothing, of the buffer's kind and on its device.
fn nothing_like(buffer: &Buffer) -> Buffer {
    Buffer::empty_on(&buffer.device(), buffer.dtype())
}
