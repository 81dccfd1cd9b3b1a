//! What one member does in a call: the collectives, by NCCL's functions.
//!
//! | call | NCCL |
//! |---|---|
//! | all_reduce, reduce | the same |
//! | reduce_scatter | the same; of different extents, a reduce for each member |
//! | all_gather | the same; of different extents, a broadcast from each member |
//! | broadcast | the same |
//! | gather, scatter, all_to_all, send, receive | sends and receives in one group |
//!
//! What is only moved is moved as bytes. A dim other than the first is brought to the front, or back, on the device.

use super::abi::{Element, check_movable};
use super::communicator::GoOn;
use super::lane::{Held, Lane};
use super::memory::Memory;
use super::shape::{cast, divided, not_numbers, pieces, side_by_side, spoiled, wide};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation, ReduceOp};
use crate::per_member::PerMember;

/// Whether the buffer is what the call says, and NCCL can carry it.
pub(super) fn check(call: &Call, buffer: &Buffer) -> Result<()> {
    let (dtype, elements) = (buffer.dtype(), buffer.num_elements());
    if (dtype, elements) != (call.dtype, call.shape.num_elements()) {
        return Err(Error::invalid(format!(
            "{call} was given {elements} elements of {}; give it a buffer of the call's shape and element type",
            dtype.name()
        )));
    }
    if dtype.is_bool() && call.operation.reduction().is_some() {
        return Err(Error::invalid(format!("{call}: truth values have no sum, product or order; use int() first")));
    }
    check_movable(dtype)
}

/// Does this member's share; all members have agreed on the call. Returns its result, flat, on the lane's device or, where
/// it gets nothing, as it was.
pub(super) fn work<M: Memory>(lane: &mut Lane<M>, call: &Call, buffer: Buffer, go_on: &GoOn<'_>) -> Result<Buffer> {
    let (me, rows, dtype) = (lane.member, call.rows, call.dtype);
    let size = dtype.size();
    let bytes = |widths: &PerMember| widths.times(rows * size);
    match call.operation {
        Operation::AllReduce(op) => reduced(lane, buffer, op, &Shares::All, go_on),
        Operation::Reduce { op, root } if root == me => reduced(lane, buffer, op, &Shares::One(root), go_on),
        Operation::Reduce { op, root } => {
            reduced(lane, buffer.clone(), op, &Shares::One(root), go_on)?;
            Ok(buffer)
        }
        Operation::ReduceScatter(op) => {
            let apart = pieces(buffer, rows, &call.send);
            reduced(lane, apart, op, &Shares::Each(call.send.times(rows)), go_on)
        }
        Operation::AllGather => {
            let together = all_gather(lane, buffer, &bytes(&call.receive), go_on)?;
            Ok(side_by_side(together, rows, &call.receive))
        }
        Operation::Gather { root } => {
            let none = PerMember::same(0, lane.size);
            let send = only(root, buffer.num_elements() * size, lane.size);
            let receive = if root == me { bytes(&call.receive) } else { none };
            let together = exchange(lane, buffer.clone(), &send, &receive, go_on)?;
            Ok(if root == me { side_by_side(together, rows, &call.receive) } else { buffer })
        }
        Operation::Scatter { root } => {
            let sizes = bytes(&call.send);
            let (own, send) = match root == me {
                true => (pieces(buffer, rows, &call.send), sizes.clone()),
                false => (buffer, PerMember::same(0, lane.size)),
            };
            exchange(lane, own, &send, &only(root, sizes[me], lane.size), go_on)
        }
        Operation::AllToAll => {
            let together = exchange(lane, buffer, &call.send.times(size), &bytes(&call.receive), go_on)?;
            Ok(side_by_side(together, rows, &call.receive))
        }
        Operation::Broadcast { root } => broadcast(lane, buffer, root, go_on),
        Operation::Send => {
            let send = only(1, buffer.num_elements() * size, 2);
            exchange(lane, buffer.clone(), &send, &PerMember::same(0, 2), go_on)?;
            Ok(buffer)
        }
        Operation::Receive => {
            let receive = only(0, buffer.num_elements() * size, 2);
            exchange(lane, buffer, &PerMember::same(0, 2), &receive, go_on)
        }
        Operation::Barrier | Operation::Split => Ok(buffer),
    }
}

/// Who gets what of a reduction.
enum Shares {
    All,
    /// Everything.
    One(usize),
    /// So many elements.
    Each(PerMember),
}

/// So much of one member, nothing of the others.
fn only(member: usize, number: usize, size: usize) -> PerMember {
    (0..size).map(|other| if other == member { number } else { 0 }).collect()
}

/// A reduction with what NCCL does otherwise: 16-bit floats in f32, a mean as a sum that is divided, and not-a-numbers
/// that win over numbers.
fn reduced<M: Memory>(
    lane: &mut Lane<M>,
    buffer: Buffer,
    op: ReduceOp,
    shares: &Shares,
    go_on: &GoOn<'_>,
) -> Result<Buffer> {
    let dtype = buffer.dtype();
    let buffer = cast(buffer, wide(dtype, op, lane.size));
    let is_order_of_floats = dtype.is_float() && matches!(op, ReduceOp::Min | ReduceOp::Max);
    let flags = is_order_of_floats.then(|| not_numbers(buffer.clone()));
    let mut result = reduced_once(lane, buffer, op, shares, go_on)?;
    if let Some(flags) = flags {
        result = spoiled(result, reduced_once(lane, flags, ReduceOp::Max, shares, go_on)?);
    }
    if op == ReduceOp::Mean {
        result = divided(result, lane.size);
    }
    Ok(cast(result, dtype))
}

fn reduced_once<M: Memory>(
    lane: &mut Lane<M>,
    buffer: Buffer,
    op: ReduceOp,
    shares: &Shares,
    go_on: &GoOn<'_>,
) -> Result<Buffer> {
    let (element, dtype) = (Element::of(buffer.dtype())?, buffer.dtype());
    if buffer.num_elements() == 0 {
        return Ok(buffer);
    }
    let own = lane.take(buffer)?;
    let me = lane.member;
    // Of who is not the root, nothing is written.
    let in_place = own.is_own(&lane.memory) || matches!(shares, Shares::One(root) if *root != me);
    match shares {
        Shares::All | Shares::One(_) if in_place => {
            let [own] = lane.run([own], go_on, |queue, [own]| match shares {
                Shares::One(root) => queue.reduce(own.all(), own.all(), element, op, *root),
                _ => queue.all_reduce(own.all(), own.all(), element, op),
            })?;
            Ok(lane.give(own))
        }
        Shares::All | Shares::One(_) => {
            let sum = lane.allocate(dtype, own.bytes)?;
            let [sum, _own] = lane.run([sum, own], go_on, |queue, [sum, own]| match shares {
                Shares::One(root) => queue.reduce(own.all(), sum.all(), element, op, *root),
                _ => queue.all_reduce(own.all(), sum.all(), element, op),
            })?;
            Ok(lane.give(sum))
        }
        Shares::Each(widths) => {
            let widths = widths.times(dtype.size());
            let sum = lane.allocate(dtype, widths[me])?;
            let [sum, _own] = lane.run([sum, own], go_on, |queue, [sum, own]| match widths.is_even() {
                true => queue.reduce_scatter(own.all(), sum.all(), element, op),
                false => parts(own, &widths).try_for_each(|(member, part)| {
                    let to = if member == me { sum.all() } else { part };
                    queue.reduce(part, to, element, op, member)
                }),
            })?;
            Ok(lane.give(sum))
        }
    }
}

fn all_gather<M: Memory>(lane: &mut Lane<M>, buffer: Buffer, widths: &PerMember, go_on: &GoOn<'_>) -> Result<Buffer> {
    let all = lane.allocate(buffer.dtype(), widths.total())?;
    let own = lane.take(buffer)?;
    if widths.total() == 0 {
        return Ok(lane.give(all));
    }
    let me = lane.member;
    let [all, _own] = lane.run([all, own], go_on, |queue, [all, own]| match widths.is_even() {
        true => queue.all_gather(own.all(), all.all()),
        false => parts(all, widths).try_for_each(|(member, part)| {
            let from = if member == me { own.all() } else { part };
            queue.broadcast(from, part, member)
        }),
    })?;
    Ok(lane.give(all))
}

fn broadcast<M: Memory>(lane: &mut Lane<M>, buffer: Buffer, root: usize, go_on: &GoOn<'_>) -> Result<Buffer> {
    if buffer.num_elements() == 0 {
        return Ok(buffer);
    }
    if root == lane.member {
        let own = lane.take(buffer.clone())?;
        lane.run([own], go_on, |queue, [own]| queue.broadcast(own.all(), own.all(), root))?;
        return Ok(buffer);
    }
    let copy = lane.allocate(buffer.dtype(), buffer.num_elements() * buffer.dtype().size())?;
    let [copy] = lane.run([copy], go_on, |queue, [copy]| queue.broadcast(copy.all(), copy.all(), root))?;
    Ok(lane.give(copy))
}

/// Sends so many bytes to each member, and receives so many from each.
fn exchange<M: Memory>(
    lane: &mut Lane<M>,
    buffer: Buffer,
    send: &PerMember,
    receive: &PerMember,
    go_on: &GoOn<'_>,
) -> Result<Buffer> {
    let dtype = buffer.dtype();
    let all = lane.allocate(dtype, receive.total())?;
    let own = if send.total() == 0 { lane.allocate(dtype, 0)? } else { lane.take(buffer)? };
    if send.total() + receive.total() == 0 {
        return Ok(lane.give(all));
    }
    let [all, _own] = lane.run([all, own], go_on, |queue, [all, own]| {
        parts(own, send).try_for_each(|(to, part)| queue.send(part, to))?;
        parts(all, receive).try_for_each(|(from, part)| queue.receive(part, from))
    })?;
    Ok(lane.give(all))
}

/// Every member's part of memory that is divided in this way, where it is not empty.
fn parts<'a, M: Memory>(
    held: &'a Held<M>,
    widths: &'a PerMember,
) -> impl Iterator<Item = (usize, super::lane::Part)> + 'a {
    let used = (0..widths.len()).filter(|member| widths[*member] > 0);
    used.map(|member| {
        let start = widths.before(member);
        (member, held.part(start..start + widths[member]))
    })
}
