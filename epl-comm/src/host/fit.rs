//! What a call says of its buffer.

use core::ops::Range;

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::per_member::PerMember;
use crate::rank::shard_range;

/// Slices of a reduction begin on cache lines of their own.
const LINE: usize = 64;

/// Whether the buffer is what the call says.
pub(crate) fn check(call: &Call, buffer: &Buffer) -> Result<()> {
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
    Ok(())
}

/// Whether no member brings a large buffer, as far as this one can know: members that agree come to the same answer,
/// but for those of an uneven all-to-all.
pub(crate) fn is_small(call: &Call, limit: usize) -> bool {
    let elements = match call.operation {
        Operation::AllGather | Operation::Gather { .. } => call.rows * call.receive.iter().max().unwrap_or(0),
        _ => call.shape.num_elements(),
    };
    elements * call.dtype.size() <= limit
}

/// Whether nobody looks at a member's buffer.
pub(crate) fn hides(operation: Operation, member: usize) -> bool {
    match operation {
        Operation::Broadcast { root } | Operation::Scatter { root } => root != member,
        Operation::Receive | Operation::Barrier => true,
        _ => false,
    }
}

/// The slice of `len` numbers that is a member's, in whole cache lines.
pub(crate) fn own_lines<N>(len: usize, members: usize, member: usize) -> Range<usize> {
    let line = LINE / size_of::<N>();
    let lines = shard_range(len.div_ceil(line), members, member);
    (lines.start * line).min(len)..(lines.end * line).min(len)
}

/// Which columns of a row that is divided in this way are a member's.
pub(crate) fn columns(widths: &PerMember, member: usize) -> Range<usize> {
    let before = widths.before(member);
    before..before + widths[member]
}

/// What a rank is blamed for that has ended although a call needs it.
pub(crate) fn left(call: &str) -> String {
    format!("it returned without taking part in {call}")
}

/// A call with its place in its group.
pub(crate) fn describe(group: &str, call: &Call) -> String {
    format!("{call}, call {} of group `{group}`", call.whole().sequence)
}
