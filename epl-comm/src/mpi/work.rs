//! What one member does in a call.

use core::mem::ManuallyDrop;
use core::ops::Range;
use std::sync::Arc;

use burn::tensor::Bytes;

use super::broadcast::broadcast;
use super::cut::outgoing;
use super::endpoint::Endpoint;
use super::headers::{EAGER, Headers, goes_along};
use super::moves::moves;
use super::reduction::{Slices, combine, reduce_along};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::host::fit::{is_small, own_lines};
use crate::host::number::{Number, with_number};
use crate::host::staging::StagedBuffer;
use crate::operation::{Call, Operation};

/// Meets the other members, and makes this one's result.
pub(super) fn work(group: &Endpoint, call: &Call, staged: StagedBuffer) -> Result<Buffer> {
    with_number!(call.dtype, N => work_on::<N>(group, call, staged))?
}

fn work_on<N: Number>(group: &Endpoint, call: &Call, staged: StagedBuffer) -> Result<Buffer> {
    let me = group.member;
    let StagedBuffer { bytes, range, home } = match call.operation {
        // What is written is the buffer and nothing else.
        Operation::AllReduce(_) if !is_small(call, EAGER) => staged.whole(),
        _ => staged,
    };
    let headers = {
        let own = numbers::<N>(&bytes, &range);
        let along = |peer| outgoing(call, me, peer).filter(|part| goes_along::<N>(call, part.len()));
        Headers::exchange(group, call, |peer| along(peer).map(|part| &own[part]))?
    };
    // From here on peers may be reading it: when something goes wrong, it is left to them.
    let mut bytes = ManuallyDrop::new(bytes);
    let made = match call.operation {
        Operation::AllReduce(op) if !is_small(call, EAGER) => {
            let (numbers, len) = written::<N>(&mut bytes);
            let slices = Slices::new(group, numbers, |member| own_lines::<N>(len, group.members.len(), member));
            // SAFETY: all of the memory is this call's alone, and the slices lie in it, apart from each other; it is
            // given back only when this has returned well.
            unsafe { combine(group, call, op, slices, true) }?;
            None
        }
        Operation::AllReduce(op) | Operation::Reduce { op, .. } | Operation::ReduceScatter(op) => {
            let own = numbers::<N>(&bytes, &range);
            match is_small(call, EAGER) {
                true => reduce_along(group, call, &headers, own, op)?,
                false => super::reduction::reduce_apart(group, call, own, op)?,
            }
        }
        Operation::Broadcast { root } => broadcast(group, call, &headers, numbers::<N>(&bytes, &range), root)?,
        _ => moves(group, call, &headers, numbers::<N>(&bytes, &range))?,
    };
    let bytes = ManuallyDrop::into_inner(bytes);
    Ok(match made {
        None => home.bring(bytes, range),
        Some(made) => {
            let made = Arc::new(group.world.arena.bytes(made));
            let range = 0..made.len();
            home.bring(made, range)
        }
    })
}

/// The numbers of a buffer.
fn numbers<'a, N: Number>(bytes: &'a Bytes, range: &Range<usize>) -> &'a [N] {
    let bytes = &bytes[range.clone()];
    if bytes.is_empty() {
        // Such as that of a member that only listens, whose tensor stays on its device: its address suits no number.
        return &[];
    }
    let start = bytes.as_ptr().cast::<N>();
    assert!(start.is_aligned(), "memory of a tensor is aligned for its numbers");
    // SAFETY: in bounds and initialised, as it is a slice of bytes; aligned as asserted; any bits are a number.
    unsafe { core::slice::from_raw_parts(start, bytes.len() / size_of::<N>()) }
}

/// The numbers of a memory, to be written; a copy when it is shared.
fn written<N: Number>(bytes: &mut Arc<Bytes>) -> (*mut N, usize) {
    let bytes: &mut Bytes = Arc::make_mut(bytes);
    if bytes.is_empty() {
        return (core::ptr::NonNull::dangling().as_ptr(), 0);
    }
    let (start, len) = (bytes.as_mut_ptr().cast::<N>(), bytes.len() / size_of::<N>());
    assert!(start.is_aligned(), "memory of a tensor is aligned for its numbers");
    (start, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_a_number_has_none_wherever_it_is() {
        let mut bytes = Arc::new(Bytes::from_elems(Vec::<u8>::new()));
        assert!(numbers::<f64>(&bytes, &(0..0)).is_empty());
        assert_eq!(written::<f64>(&mut bytes).1, 0);
    }
}
