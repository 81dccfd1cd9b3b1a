//! What one member does in a meeting.

use core::iter;
use core::ops::Range;
use std::sync::Arc;

use burn::tensor::Bytes;
use smallvec::SmallVec;

use super::board::Meeting;
use super::memory::Memory;
use crate::error::Result;
use crate::host::fit::{columns, own_lines};
use crate::host::number::{Number, reduce, with_number};
use crate::operation::{Operation, ReduceOp};
use crate::per_member::PerMember;

/// Bytes that are reduced at a time: a chunk of every member's buffer fits into a core's own cache.
const CHUNK: usize = 16 << 10;
/// The member of a link that sends.
const SENDER: usize = 0;

/// Does this member's share. Returns its result when that is not in the posted buffer; `kept` is memory of its own
/// that it may write.
pub(super) fn work(meeting: &Meeting<'_>, member: usize, kept: &mut Option<Arc<Bytes>>) -> Result<Option<Arc<Bytes>>> {
    let call = &meeting.post(member).call;
    let (rows, send, len) = (call.rows, &call.send, call.shape.num_elements());
    let is_written = |member: usize| !meeting.is_readable(member);
    with_number!(call.dtype, N => {
        let made = |numbers: Vec<N>| Some(Arc::new(meeting.arena().bytes(numbers)));
        match call.operation {
            Operation::AllReduce(op) if is_written(member) => {
                all_reduce::<N>(meeting, member, len, op);
                None
            }
            Operation::Reduce { op, root } if is_written(root) => {
                reduce_for_root::<N>(meeting, member, root, len, op);
                None
            }
            Operation::Reduce { root, .. } | Operation::Gather { root } if root != member => None,
            Operation::AllReduce(op) | Operation::Reduce { op, .. } => {
                made(reduce_columns::<N>(meeting, 1, len, 0..len, op))
            }
            Operation::AllGather | Operation::Gather { .. } | Operation::Split => {
                made(all_gather::<N>(meeting, rows, &call.receive))
            }
            Operation::ReduceScatter(op) => {
                let columns = columns(send, member);
                made(reduce_columns::<N>(meeting, rows, send.total(), columns, op))
            }
            Operation::Scatter { root } => made(scatter::<N>(meeting, rows, member, root, send)),
            Operation::AllToAll => made(all_to_all::<N>(meeting, rows, member, &call.receive)),
            Operation::Broadcast { root } if root != member => {
                let numbers: &[N] = meeting.numbers(root);
                copy_over(numbers, kept).or_else(|| made(copy(meeting, numbers)))
            }
            Operation::Receive => {
                let sent = &meeting.post(SENDER).memory;
                sent.shared().or_else(|| made(copy(meeting, meeting.numbers(SENDER))))
            }
            Operation::Send | Operation::Broadcast { .. } | Operation::Barrier => None,
        }
    })
}

/// Reduces this member's slice of all buffers, and leaves the result in all of them.
fn all_reduce<N: Number>(meeting: &Meeting<'_>, member: usize, len: usize, op: ReduceOp) {
    let mut slices: SmallVec<[&mut [N]; 8]> = SmallVec::new();
    for post in meeting.posts() {
        let Memory::Write(memory) = &post.memory else { panic!("an all-reduce posts memory to be written") };
        assert_eq!(memory.len::<N>(), len, "a buffer of an all-reduce covers its memory as a whole");
        let range = own_lines::<N>(len, meeting.members(), member);
        // SAFETY: all members have the same length, as their calls agree; slice `member` of every buffer is this
        // member's alone, once in this loop, until it leaves, and the meeting is not left before this function returns.
        slices.push(unsafe { memory.part::<N>(range) });
    }
    let Some((first, others)) = slices.split_first_mut() else { return };
    let chunk = CHUNK / size_of::<N>();
    for start in (0..first.len()).step_by(chunk) {
        let range = start..(start + chunk).min(first.len());
        let sum = &mut first[range.clone()];
        reduce(sum, iter::empty(), others.iter().map(|other| &other[range.clone()]), op);
        for other in others.iter_mut() {
            other[range.clone()].copy_from_slice(sum);
        }
    }
}

/// Reduces this member's slice of all buffers into the root's.
fn reduce_for_root<N: Number>(meeting: &Meeting<'_>, member: usize, root: usize, len: usize, op: ReduceOp) {
    let Memory::Write(memory) = &meeting.post(root).memory else { panic!("a root posts memory to be written") };
    assert_eq!(memory.len::<N>(), len, "a buffer that is written covers its memory as a whole");
    let members = meeting.members();
    let range = own_lines::<N>(len, members, member);
    // SAFETY: the root's memory is as long on every member, as their calls agree; slice `member` of it is this
    // member's alone until it leaves, and the meeting is not left before this function returns.
    let sum = unsafe { memory.part::<N>(range.clone()) };
    let part = |member: usize| &meeting.numbers::<N>(member)[range.clone()];
    reduce(sum, (0..root).map(part), (root + 1..members).map(part), op);
}

/// Row by row, every member's part of the row.
fn all_gather<N: Number>(meeting: &Meeting<'_>, rows: usize, receive: &PerMember) -> Vec<N> {
    let parts = (0..meeting.members()).map(|member| meeting.numbers::<N>(member));
    side_by_side(meeting, rows, parts, receive)
}

/// Row by row of `width` numbers, some columns, reduced over all buffers.
fn reduce_columns<N: Number>(
    meeting: &Meeting<'_>,
    rows: usize,
    width: usize,
    columns: Range<usize>,
    op: ReduceOp,
) -> Vec<N> {
    let mut reduced = meeting.arena().vec(rows * columns.len());
    let chunk = CHUNK / size_of::<N>();
    for row in 0..rows {
        let part = row * width + columns.start..row * width + columns.end;
        for start in part.clone().step_by(chunk) {
            let range = start..(start + chunk).min(part.end);
            let done = reduced.len();
            reduced.extend_from_slice(&meeting.numbers::<N>(0)[range.clone()]);
            let others = (1..meeting.members()).map(|member| &meeting.numbers::<N>(member)[range.clone()]);
            reduce(&mut reduced[done..], iter::empty(), others, op);
        }
    }
    reduced
}

/// Row by row, this member's part of the root's row.
fn scatter<N: Number>(meeting: &Meeting<'_>, rows: usize, member: usize, root: usize, send: &PerMember) -> Vec<N> {
    let buffer: &[N] = meeting.numbers(root);
    let (width, columns) = (send.total(), columns(send, member));
    let mut part = meeting.arena().vec(rows * columns.len());
    (0..rows).for_each(|row| part.extend_from_slice(&buffer[row * width..][columns.clone()]));
    part
}

/// From every buffer the piece for this member; the pieces are put side by side, row by row.
fn all_to_all<N: Number>(meeting: &Meeting<'_>, rows: usize, member: usize, receive: &PerMember) -> Vec<N> {
    let piece = |from: usize| &meeting.numbers::<N>(from)[meeting.call(from).send.before(member)..];
    side_by_side(meeting, rows, (0..meeting.members()).map(piece), receive)
}

/// Row by row, so many numbers of every part's row.
fn side_by_side<'a, N: Number>(
    meeting: &Meeting<'_>,
    rows: usize,
    parts: impl Iterator<Item = &'a [N]>,
    widths: &PerMember,
) -> Vec<N> {
    let parts: SmallVec<[&[N]; 8]> = parts.collect();
    let mut all = meeting.arena().vec(rows * widths.total());
    for row in 0..rows {
        for (part, width) in parts.iter().zip(widths.iter()) {
            all.extend_from_slice(&part[row * width..][..width]);
        }
    }
    all
}

/// A copy over memory of the member's own, where nobody else holds that.
fn copy_over<N: Number>(numbers: &[N], own: &mut Option<Arc<Bytes>>) -> Option<Arc<Bytes>> {
    let mut own = own.take()?;
    let place = Arc::get_mut(&mut own)?;
    if place.len() != size_of_val(numbers) {
        return None;
    }
    place.copy_from_slice(N::as_bytes(numbers));
    Some(own)
}

fn copy<N: Number>(meeting: &Meeting<'_>, numbers: &[N]) -> Vec<N> {
    let mut all = meeting.arena().vec(numbers.len());
    all.extend_from_slice(numbers);
    all
}
