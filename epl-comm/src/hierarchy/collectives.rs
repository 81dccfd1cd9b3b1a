//! The collectives over several hosts, each in stages: inside the hosts, between their leaders, inside again.
//!
//! A stage between leaders moves nothing for the other members, who have no part in it.

use burn::tensor::DType;

use super::Hierarchy;
use super::arranged::arranged;
use super::numbers::Whole;
use super::stage::{LEADER, Stage};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::{Operation, ReduceOp};
use crate::per_member::PerMember;

impl Hierarchy {
    /// The calls that one is made of inside this member's host, and those between the leaders.
    pub(super) fn stages(&self, operation: Operation) -> (Vec<Operation>, Vec<Operation>) {
        // To the leader, or from it, if the root is another member of this host.
        let way = |root: usize, way: Operation| {
            let is_other = self.hosts.host_of(root) == self.hosts.host() && self.hosts.position(root) != LEADER;
            is_other.then_some(way)
        };
        let root = |root: usize| self.hosts.host_of(root);
        let (to_leader, from_leader) = (Operation::Gather { root: LEADER }, Operation::AllToAll);
        let sum = |op: ReduceOp| Operation::Reduce { op: additive(op), root: LEADER };
        let share = Operation::Broadcast { root: LEADER };
        let (inside, between) = match operation {
            Operation::AllReduce(op) => ([Some(sum(op)), Some(share), None], Operation::AllReduce(additive(op))),
            Operation::Reduce { op, root: to } => {
                let between = Operation::Reduce { op: additive(op), root: root(to) };
                ([Some(sum(op)), way(to, from_leader), None], between)
            }
            Operation::ReduceScatter(op) => {
                ([Some(sum(op)), Some(from_leader), None], Operation::ReduceScatter(additive(op)))
            }
            Operation::AllGather | Operation::Split => {
                ([Some(to_leader), Some(Operation::AllGather), None], Operation::AllGather)
            }
            Operation::Gather { root: to } => {
                ([Some(to_leader), way(to, from_leader), None], Operation::Gather { root: root(to) })
            }
            Operation::Scatter { root: from } => {
                ([way(from, to_leader), Some(from_leader), None], Operation::Scatter { root: root(from) })
            }
            Operation::Broadcast { root: from } => {
                ([way(from, to_leader), Some(share), None], Operation::Broadcast { root: root(from) })
            }
            Operation::Barrier => ([Some(Operation::Barrier), Some(Operation::Barrier), None], Operation::Barrier),
            Operation::AllToAll => {
                let inside = [to_leader, Operation::AllToAll, from_leader];
                return (inside.to_vec(), vec![Operation::AllGather, Operation::AllToAll]);
            }
            Operation::Send | Operation::Receive => unreachable!("links are groups of their own"),
        };
        (inside.into_iter().flatten().collect(), vec![between])
    }

    /// This member's part of a call, and what it gets.
    pub(super) fn take_part(&self, call: &Whole, buffer: Buffer) -> Result<Buffer> {
        match call.operation {
            Operation::AllReduce(op) => self.all_reduce(call, buffer, op),
            Operation::Reduce { op, root } => self.reduce(call, buffer, op, root),
            Operation::ReduceScatter(op) => self.reduce_scatter(call, buffer, op),
            Operation::AllGather | Operation::Split => self.all_gather(call, buffer),
            Operation::Gather { root } => self.gather(call, buffer, root),
            Operation::Scatter { root } => self.scatter(call, buffer, root),
            Operation::AllToAll => self.all_to_all(call, buffer),
            Operation::Broadcast { root } => self.broadcast(call, buffer, root),
            Operation::Barrier => self.barrier(call, buffer),
            Operation::Send | Operation::Receive => unreachable!("links are groups of their own"),
        }
    }

    /// The calls inside this member's host.
    pub(super) fn inside<'a>(&'a self, whole: &'a Whole) -> Stage<'a> {
        Stage { group: self.inner.as_deref(), whole: &whole.call, due: &whole.inside }
    }

    /// The calls between the leaders.
    pub(super) fn between<'a>(&'a self, whole: &'a Whole) -> Stage<'a> {
        Stage { group: self.outer.as_deref(), whole: &whole.call, due: &whole.between }
    }

    fn all_reduce(&self, call: &Whole, buffer: Buffer, op: ReduceOp) -> Result<Buffer> {
        let dtype = buffer.dtype();
        let sum = self.inside(call).reduce(wide(buffer), additive(op), LEADER)?;
        let sum = self.between(call).all_reduce(sum, additive(op))?;
        self.inside(call).broadcast(self.rounded(sum, op, dtype), LEADER)
    }

    fn reduce(&self, call: &Whole, buffer: Buffer, op: ReduceOp, root: usize) -> Result<Buffer> {
        let (dtype, own) = (buffer.dtype(), buffer.clone());
        let sum = self.inside(call).reduce(wide(buffer), additive(op), LEADER)?;
        let sum = self.between(call).reduce(sum, additive(op), self.hosts.host_of(root))?;
        let got = self.pass(call, self.rounded(sum, op, dtype), call.shape.num_elements(), root)?;
        Ok(got.unwrap_or(own))
    }

    fn reduce_scatter(&self, call: &Whole, buffer: Buffer, op: ReduceOp) -> Result<Buffer> {
        let dtype = buffer.dtype();
        let sum = self.inside(call).reduce(wide(buffer), additive(op), LEADER)?;
        let mut own = sum;
        if self.hosts.leads() {
            let by_host = arranged(own, &self.hosts.to_hosts(&call.sent()));
            own = self.between(call).reduce_scatter(by_host, additive(op), self.hosts.outer(&call.sent()))?;
        }
        self.hand_out(call, self.rounded(own, op, dtype))
    }

    fn all_gather(&self, call: &Whole, buffer: Buffer) -> Result<Buffer> {
        let all = self.gather_at_leader(call, buffer, None)?;
        self.inside(call).share(all, call.received().total())
    }

    fn gather(&self, call: &Whole, buffer: Buffer, root: usize) -> Result<Buffer> {
        let own = buffer.clone();
        let all = self.gather_at_leader(call, buffer, Some(self.hosts.host_of(root)))?;
        let got = self.pass(call, all, call.received().total(), root)?;
        Ok(got.unwrap_or(own))
    }

    fn scatter(&self, call: &Whole, buffer: Buffer, root: usize) -> Result<Buffer> {
        let mut own = self.bring(call, buffer, root)?;
        if self.hosts.leads() {
            let by_host = arranged(own, &self.hosts.to_hosts(&call.sent()));
            let (root, widths) = (self.hosts.host_of(root), self.hosts.outer(&call.sent()));
            own = self.between(call).scatter(by_host, root, widths)?;
        }
        self.hand_out(call, own)
    }

    fn broadcast(&self, call: &Whole, buffer: Buffer, root: usize) -> Result<Buffer> {
        let own = self.bring(call, buffer, root)?;
        let own = self.between(call).broadcast(own, self.hosts.host_of(root))?;
        self.inside(call).broadcast(own, LEADER)
    }

    fn barrier(&self, call: &Whole, buffer: Buffer) -> Result<Buffer> {
        self.inside(call).barrier()?;
        self.between(call).barrier()?;
        self.inside(call).barrier()?;
        Ok(buffer)
    }

    /// All members' parts in their order, at the leaders or at one host's; at the others, anything.
    fn gather_at_leader(&self, call: &Whole, buffer: Buffer, host: Option<usize>) -> Result<Buffer> {
        let receive = &call.received();
        let near = self.inside(call).gather(buffer, LEADER, self.hosts.inner(receive))?;
        let all = match host {
            None => self.between(call).all_gather(near, self.hosts.outer(receive))?,
            Some(host) => self.between(call).gather(near, host, self.hosts.outer(receive))?,
        };
        let has_all = self.hosts.leads() && host.is_none_or(|host| host == self.hosts.host());
        Ok(if has_all { arranged(all, &self.hosts.to_members(receive)) } else { all })
    }

    /// The buffer of a member at the leader of its host; every other member's own.
    fn bring(&self, call: &Whole, buffer: Buffer, from: usize) -> Result<Buffer> {
        if self.hosts.host_of(from) != self.hosts.host() {
            return Ok(buffer);
        }
        self.inside(call).bring(buffer, self.hosts.position(from))
    }

    /// What the leader of a member's host has, of `len` elements, for that member; nothing for the others.
    fn pass(&self, call: &Whole, buffer: Buffer, len: usize, to: usize) -> Result<Option<Buffer>> {
        if self.hosts.host_of(to) != self.hosts.host() {
            return Ok(None);
        }
        let position = self.hosts.position(to);
        let got = match position {
            LEADER => buffer,
            _ => {
                let widths: PerMember =
                    (0..self.hosts.own().len()).map(|member| if member == position { len } else { 0 }).collect();
                self.inside(call).hand_out(buffer, &widths)?
            }
        };
        Ok((to == self.hosts.member()).then_some(got))
    }

    /// To each member of the host its part of what the leader has.
    fn hand_out(&self, call: &Whole, buffer: Buffer) -> Result<Buffer> {
        self.inside(call).hand_out(buffer, &self.hosts.inner(&call.sent()))
    }

    /// The end of a reduction that was taken in stages.
    fn rounded(&self, sum: Buffer, op: ReduceOp, dtype: DType) -> Buffer {
        let is_mean = op == ReduceOp::Mean && self.hosts.leads();
        if is_mean { sum.divided(self.hosts.len()) } else { sum }.cast(dtype)
    }
}

/// A mean is a sum until its end.
fn additive(op: ReduceOp) -> ReduceOp {
    if op == ReduceOp::Mean { ReduceOp::Sum } else { op }
}

/// 16-bit floats in f32, so that they are rounded once.
fn wide(buffer: Buffer) -> Buffer {
    match buffer.dtype() {
        DType::F16 | DType::BF16 => buffer.cast(DType::F32),
        _ => buffer,
    }
}
