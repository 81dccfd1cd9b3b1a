//! Whether the calls of a meeting fit together, and who is at odds with whom if not.

use crate::error::{Error, Result};
use crate::operation::{Call, Operation};
use crate::rank::Rank;

/// Two members whose calls do not fit together.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MismatchPair {
    pub(crate) first: usize,
    pub(crate) second: usize,
    /// Whether more than half of the members agree, among them the first, and the second is not one of them. Otherwise
    /// nobody can say which of the two is wrong.
    pub(crate) second_is_odd: bool,
}

impl MismatchPair {
    /// Compares the calls of `size` members. Every member that asks finds the same.
    pub(crate) fn among<'a>(size: usize, call: impl Fn(usize) -> &'a Call) -> Option<Self> {
        let agree = |a: usize, b: usize| a == b || call(a).agrees(a, call(b), b);
        // What all must have in common is compared with the first; what two must agree on, between all pairs.
        let firsts = if call(0).operation == Operation::AllToAll { size } else { 1 };
        let mut pairs = (0..firsts).flat_map(|first| (first + 1..size).map(move |second| (first, second)));
        let (first, second) = pairs.find(|(first, second)| !agree(*first, *second))?;
        Some(odd_one(size, agree).unwrap_or(Self { first, second, second_is_odd: false }))
    }
}

/// Compares the calls of the members of a group, of which `call` is this one's. Every member finds the same.
///
/// # Errors
///
/// [`Error::Mismatch`] when two of them do not fit together.
pub(crate) fn compare<'a>(group: &str, members: &[Rank], call: &Call, calls: impl Fn(usize) -> &'a Call) -> Result<()> {
    let Some(MismatchPair { first, second, second_is_odd }) = MismatchPair::among(members.len(), &calls) else {
        return Ok(());
    };
    Err(Error::Mismatch {
        group: group.to_string(),
        sequence: call.whole().sequence,
        first: members[first],
        first_call: calls(first).to_string(),
        second: members[second],
        second_call: calls(second).to_string(),
        second_is_odd,
    })
}

/// The first member that is not with the majority, beside one whose call it does not fit.
fn odd_one(size: usize, agree: impl Fn(usize, usize) -> bool) -> Option<MismatchPair> {
    let with_most = |a: usize| 2 * (0..size).filter(|b| agree(a, *b)).count() > size;
    if !(0..size).any(with_most) {
        return None;
    }
    let second = (0..size).find(|member| !with_most(*member))?;
    let first = (0..size).filter(|member| !agree(*member, second)).min_by_key(|member| !with_most(*member))?;
    Some(MismatchPair { first, second, second_is_odd: true })
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Shape};

    use super::*;
    use crate::operation::ReduceOp;

    fn among(lengths: &[usize]) -> Option<(usize, usize, bool)> {
        let call = |len: &usize| Call::new(Operation::AllReduce(ReduceOp::Sum), DType::F32, Shape::new([*len]));
        let calls: Vec<Call> = lengths.iter().map(call).collect();
        MismatchPair::among(calls.len(), |member| &calls[member])
            .map(|MismatchPair { first, second, second_is_odd }| (first, second, second_is_odd))
    }

    #[test]
    fn the_odd_one_is_whoever_is_not_with_more_than_half() {
        assert_eq!(among(&[4, 4, 4]), None);
        assert_eq!(among(&[4, 5]), Some((0, 1, false)));
        assert_eq!(among(&[5, 4, 4]), Some((1, 0, true)));
        assert_eq!(among(&[4, 4, 5, 4]), Some((0, 2, true)));
        assert_eq!(among(&[4, 5, 4, 5]), Some((0, 1, false)));
        assert_eq!(among(&[6, 5, 4, 4, 4]), Some((2, 0, true)));
        assert_eq!(among(&[4, 5, 6]), Some((0, 1, false)));
    }
}
