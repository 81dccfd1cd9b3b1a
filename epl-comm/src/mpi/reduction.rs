//! Reductions, in the order of the members.
//!
//! Each member reduces a part: its slice of an all-reduce, its columns of a reduce-scatter, all of it at the root of a
//! reduce. The others send it theirs, chunk by chunk, so that one chunk travels while the one before it is reduced:
//!
//! ```text
//! member 1's part     chunk 0    chunk 1    chunk 2
//! from the others     ██████     ██████     ██████
//! reduced                  ██████     ██████     ██████
//! to the others                  ██████     ██████     ██████      (an all-reduce)
//! ```
//!
//! So every number is computed once, by one member, as `local` computes it: the same bits on all members, in every run
//! and over either transport.

use core::mem::ManuallyDrop;
use core::ops::Range;

use super::cut::{incoming, outgoing};
use super::endpoint::Endpoint;
use super::headers::Headers;
use super::request_set::RequestSet;
use crate::error::{Error, Result};
use crate::host::number::{Number, reduce};
use crate::operation::{Call, ReduceOp};

/// Bytes of a chunk.
const CHUNK: usize = 256 << 10;

/// A member's numbers, by whose part they are.
pub(super) struct Slices<N> {
    /// Where this member's part begins, and how long it is.
    own: (*mut N, usize),
    /// The others' parts: the member, the beginning, the length.
    others: Vec<(usize, *mut N, usize)>,
}

impl<N> Slices<N> {
    /// Parts of one buffer.
    pub(super) fn new(group: &Endpoint, buffer: *mut N, part: impl Fn(usize) -> Range<usize>) -> Self {
        // Only places: nothing is read or written.
        let place = |member| {
            let part: Range<usize> = part(member);
            (buffer.wrapping_add(part.start), part.len())
        };
        let other = |member| {
            let (start, len) = place(member);
            (member, start, len)
        };
        Self { own: place(group.member), others: group.peers().map(other).collect() }
    }
}

/// Reduces what came along with the calls. None for a member that gets nothing.
pub(super) fn reduce_along<N: Number>(
    group: &Endpoint,
    call: &Call,
    headers: &Headers,
    own: &[N],
    op: ReduceOp,
) -> Result<Option<Vec<N>>> {
    let (me, members) = (group.member, group.members.len());
    let (Some(part), Some(len)) = (outgoing(call, me, me), incoming(call, me, me)) else { return Ok(None) };
    let mut sum = group.world.arena.vec(len);
    sum.extend_from_slice(&own[part]);
    let mut parts: Vec<&[N]> = Vec::with_capacity(members);
    for member in 0..members {
        let missing = || Error::Medium { message: "data that goes along with a call did not come".to_string() };
        parts.push(if member == me { &[] } else { headers.along(member, len)?.ok_or_else(missing)? });
    }
    reduce(&mut sum, parts[..me].iter().copied(), parts[me + 1..].iter().copied(), op);
    Ok(Some(sum))
}

/// Reduces this member's part of large buffers. None for a member that gets nothing.
///
/// When this returns an error, peers may still be reading `own`.
pub(super) fn reduce_apart<N: Number>(
    group: &Endpoint,
    call: &Call,
    own: &[N],
    op: ReduceOp,
) -> Result<Option<Vec<N>>> {
    let me = group.member;
    let arena = &group.world.arena;
    let sent =
        |peer: usize| outgoing(call, me, peer).map(|part| (peer, own[part.clone()].as_ptr().cast_mut(), part.len()));
    let others = group.peers().filter_map(sent).collect();
    // As long as messages may be on their way; for ever when something goes wrong.
    let mut sum = ManuallyDrop::new(None);
    if let Some(part) = outgoing(call, me, me) {
        let mut numbers = arena.vec(part.len());
        numbers.extend_from_slice(&own[part]);
        *sum = Some(numbers);
    }
    let place = sum.as_mut().map_or((core::ptr::null_mut(), 0), |sum: &mut Vec<N>| (sum.as_mut_ptr(), sum.len()));
    // SAFETY: the sum is this call's alone; the others' parts are read only, as nothing is spread; both stay until this
    // has returned well.
    unsafe { combine(group, call, op, Slices { own: place, others }, false) }?;
    Ok(ManuallyDrop::into_inner(sum))
}

/// Reduces this member's part in place; `spreads`: and sends it to all the others, whose parts it gets in theirs' place.
///
/// # Safety
///
/// The parts are alive, apart from each other, and used by nobody else until this has returned well; when it `spreads`
/// they may all be written, otherwise only this member's own.
pub(super) unsafe fn combine<N: Number>(
    group: &Endpoint,
    call: &Call,
    op: ReduceOp,
    slices: Slices<N>,
    spreads: bool,
) -> Result<()> {
    let Slices { own: (own, own_len), others } = slices;
    let (me, members, chunk) = (group.member, group.members.len(), CHUNK / size_of::<N>());
    // How long chunk `number` of a part is.
    let count = |len: usize, number: usize| len.saturating_sub(number * chunk).min(chunk);
    let longest = others.iter().map(|(_, _, len)| *len).chain([own_len]).max().unwrap_or(0);
    let chunks = longest.div_ceil(chunk);
    let room = chunk.min(own_len) * (members - 1);
    let mut arrived = ManuallyDrop::new([0, 1].map(|_| group.world.arena.vec::<N>(room)));
    let places = arrived.each_mut().map(Vec::as_mut_ptr);
    // The chunk of a member that has come in.
    let place = |number: usize, member: usize| {
        places[number % 2].wrapping_add(((member + members - me) % members - 1) * chunk.min(own_len))
    };
    let mut coming = [RequestSet::of_data(group, call), RequestSet::of_data(group, call)];
    let mut spread = RequestSet::of_data(group, call);
    for number in 0..chunks + 1 {
        if number < chunks {
            let requests = &mut coming[number % 2];
            for (peer, part, len) in &others {
                // SAFETY: in the part; nobody writes it before the requests have been waited for.
                unsafe { requests.send(*peer, part.wrapping_add(number * chunk), count(*len, number)) }?;
            }
            for peer in group.peers() {
                // SAFETY: a place of its own, last used two chunks ago.
                unsafe { requests.receive(peer, place(number, peer), count(own_len, number)) }?;
            }
        }
        let Some(number) = number.checked_sub(1) else { continue };
        coming[number % 2].wait()?;
        let len = count(own_len, number);
        let sum = own.wrapping_add(number * chunk);
        if len > 0 {
            // SAFETY: all that came has come; nobody else uses either.
            unsafe {
                let part = |member: usize| core::slice::from_raw_parts(place(number, member).cast_const(), len);
                let sum = core::slice::from_raw_parts_mut(sum, len);
                reduce(sum, (0..me).map(part), (me + 1..members).map(part), op);
            }
        }
        for (peer, part, their_len) in others.iter().filter(|_| spreads) {
            // SAFETY: what is sent is not written again; what is written has been sent.
            unsafe {
                spread.send(*peer, sum, len)?;
                spread.receive(*peer, part.wrapping_add(number * chunk), count(*their_len, number))?;
            }
        }
    }
    spread.wait()?;
    drop(ManuallyDrop::into_inner(arrived));
    Ok(())
}
