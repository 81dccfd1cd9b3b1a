//! What one member does in a meeting.

use core::iter;
use core::ops::Range;
use std::sync::Arc;

use burn::tensor::Bytes;

use super::board::{Meeting, Post};
use super::memory::Memory;
use super::number::{Number, reduce, with_number};
use crate::error::Result;
use crate::operation::{Operation, ReduceOp};
use crate::rank::shard_range;

/// Bytes that are reduced at a time: a chunk of every member's buffer fits into a core's own cache.
const CHUNK: usize = 16 << 10;
/// The member of a link that sends.
const SENDER: usize = 0;
/// Slices begin on cache lines of their own.
const LINE: usize = 64;

/// Does this member's share. Returns its result when that is not in the posted buffer; `kept` is memory of its own
/// that was not posted.
pub(super) fn work(meeting: &Meeting<'_>, member: usize, kept: &mut Option<Arc<Bytes>>) -> Result<Option<Arc<Bytes>>> {
    let call = &meeting.post(member).call;
    let (rows, send) = (call.rows, &call.send);
    with_number!(call.dtype, N => match call.operation {
        Operation::AllReduce(op) => {
            all_reduce::<N>(meeting, member, call.shape.num_elements(), op);
            None
        }
        Operation::Reduce { op, root } => {
            reduce_for_root::<N>(meeting, member, root, call.shape.num_elements(), op);
            None
        }
        Operation::Gather { root } if root != member => None,
        Operation::AllGather | Operation::Gather { .. } | Operation::Split => Some(Arc::new(all_gather::<N>(meeting, rows, &call.receive))),
        Operation::ReduceScatter(op) => Some(Arc::new(reduce_scatter::<N>(meeting, rows, member, send, op))),
        Operation::Scatter { root } => Some(Arc::new(scatter::<N>(meeting, rows, member, root, send))),
        Operation::AllToAll => Some(Arc::new(all_to_all::<N>(meeting, rows, member, &call.receive))),
        Operation::Broadcast { root } if root != member => {
            Some(broadcast::<N>(meeting.post(root).memory.numbers(), kept.take()))
        }
        Operation::Receive => Some(meeting.post(SENDER).memory.shared::<N>()),
        Operation::Send | Operation::Broadcast { .. } | Operation::Barrier => None,
    })
}

/// Reduces this member's slice of all buffers, and leaves the result in all of them.
fn all_reduce<N: Number>(meeting: &Meeting<'_>, member: usize, len: usize, op: ReduceOp) {
    let mut slices: Vec<&mut [N]> = Vec::with_capacity(meeting.posts().len());
    for post in meeting.posts() {
        let Memory::Write(memory) = &post.memory else { panic!("an all-reduce posts memory to be written") };
        assert_eq!(memory.len::<N>(), len, "a buffer of an all-reduce covers its memory as a whole");
        let range = own_lines::<N>(len, meeting.posts().len(), member);
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
    let members = meeting.posts().len();
    let range = own_lines::<N>(len, members, member);
    // SAFETY: the root's memory is as long on every member, as their calls agree; slice `member` of it is this
    // member's alone until it leaves, and the meeting is not left before this function returns.
    let sum = unsafe { memory.part::<N>(range.clone()) };
    let part = |member: usize| &meeting.post(member).memory.numbers::<N>()[range.clone()];
    reduce(sum, (0..root).map(part), (root + 1..members).map(part), op);
}

/// The slice of `len` numbers that is a member's, in whole cache lines.
fn own_lines<N>(len: usize, members: usize, member: usize) -> Range<usize> {
    let line = LINE / size_of::<N>();
    let lines = shard_range(len.div_ceil(line), members, member);
    (lines.start * line).min(len)..(lines.end * line).min(len)
}

/// Row by row, every member's part of the row.
fn all_gather<N: Number>(meeting: &Meeting<'_>, rows: usize, receive: &[usize]) -> Bytes {
    let parts: Vec<&[N]> = meeting.posts().map(|post| post.memory.numbers()).collect();
    let mut all = Vec::with_capacity(rows * receive.iter().sum::<usize>());
    for row in 0..rows {
        for (part, width) in parts.iter().zip(receive) {
            all.extend_from_slice(&part[row * width..][..*width]);
        }
    }
    N::into_bytes(all)
}

/// Row by row, this member's part of the row, reduced over all buffers.
fn reduce_scatter<N: Number>(meeting: &Meeting<'_>, rows: usize, member: usize, send: &[usize], op: ReduceOp) -> Bytes {
    let buffers: Vec<&[N]> = meeting.posts().map(|post| post.memory.numbers()).collect();
    let width: usize = send.iter().sum();
    let before: usize = send[..member].iter().sum();
    let mut reduced = Vec::with_capacity(rows * send[member]);
    let chunk = CHUNK / size_of::<N>();
    for row in 0..rows {
        let part = row * width + before..row * width + before + send[member];
        for start in part.clone().step_by(chunk) {
            let range = start..(start + chunk).min(part.end);
            let done = reduced.len();
            reduced.extend_from_slice(&buffers[0][range.clone()]);
            let others = buffers[1..].iter().map(|buffer| &buffer[range.clone()]);
            reduce(&mut reduced[done..], iter::empty(), others, op);
        }
    }
    N::into_bytes(reduced)
}

/// Row by row, this member's part of the root's row.
fn scatter<N: Number>(meeting: &Meeting<'_>, rows: usize, member: usize, root: usize, send: &[usize]) -> Bytes {
    let buffer: &[N] = meeting.post(root).memory.numbers();
    let width: usize = send.iter().sum();
    let before: usize = send[..member].iter().sum();
    let mut part = Vec::with_capacity(rows * send[member]);
    (0..rows).for_each(|row| part.extend_from_slice(&buffer[row * width + before..][..send[member]]));
    N::into_bytes(part)
}

/// From every buffer the piece for this member; the pieces are put side by side, row by row.
fn all_to_all<N: Number>(meeting: &Meeting<'_>, rows: usize, member: usize, receive: &[usize]) -> Bytes {
    let mut pieces: Vec<&[N]> = Vec::with_capacity(receive.len());
    for (Post { call, memory }, width) in meeting.posts().zip(receive) {
        let before: usize = call.send[..member].iter().sum();
        pieces.push(&memory.numbers::<N>()[before..][..rows * width]);
    }
    let mut all = Vec::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    for row in 0..rows {
        for (piece, width) in pieces.iter().zip(receive) {
            all.extend_from_slice(&piece[row * width..][..*width]);
        }
    }
    N::into_bytes(all)
}

/// The root's buffer, copied over this member's own where nobody else holds that.
fn broadcast<N: Number>(root: &[N], own: Option<Arc<Bytes>>) -> Arc<Bytes> {
    if let Some(mut own) = own
        && let Some(place) = Arc::get_mut(&mut own)
        && place.len() == size_of_val(root)
    {
        place.copy_from_slice(N::as_bytes(root));
        return own;
    }
    Arc::new(N::into_bytes(root.to_vec()))
}
