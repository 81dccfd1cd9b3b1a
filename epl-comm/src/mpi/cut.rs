//! Which numbers of a member's buffer go to which other member.

use core::ops::Range;

use crate::operation::{Call, Operation};

/// What a member gives to another, or to itself: which numbers of its buffer. None when nothing goes that way.
pub(super) fn outgoing(call: &Call, from: usize, to: usize) -> Option<Range<usize>> {
    let whole = || 0..call.shape.num_elements();
    let piece = || call.piece_for(to);
    match call.operation {
        Operation::AllReduce(_) | Operation::AllGather | Operation::Split => Some(whole()),
        Operation::Reduce { root, .. } | Operation::Gather { root } => (root == to).then(whole),
        Operation::ReduceScatter(_) | Operation::AllToAll => Some(piece()),
        Operation::Scatter { root } => (root == from).then(piece),
        Operation::Broadcast { root } => (root == from).then(whole),
        Operation::Send => (from != to).then(whole),
        Operation::Receive | Operation::Barrier => None,
    }
}

/// How many numbers a member gets from another, or from itself. None when nothing comes that way.
pub(super) fn incoming(call: &Call, from: usize, to: usize) -> Option<usize> {
    let len = || call.shape.num_elements();
    match call.operation {
        Operation::AllReduce(_) => Some(len()),
        Operation::Reduce { root, .. } => (root == to).then(len),
        Operation::AllGather | Operation::Split | Operation::AllToAll => Some(call.rows * call.receive[from]),
        Operation::Gather { root } => (root == to).then(|| call.rows * call.receive[from]),
        Operation::ReduceScatter(_) => Some(call.rows * call.send[to]),
        Operation::Scatter { root } => (root == from).then(|| call.rows * call.send[to]),
        Operation::Broadcast { root } => (root == from).then(len),
        Operation::Receive => (from != to).then(len),
        Operation::Send | Operation::Barrier => None,
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Shape};

    use super::*;
    use crate::operation::ReduceOp;

    #[test]
    fn what_one_gives_is_what_the_other_gets() {
        let call = |operation, rows, send: &[usize], receive: &[usize], len| Call {
            rows,
            send: send.into(),
            receive: receive.into(),
            ..Call::new(operation, DType::F32, Shape::new([len]))
        };
        let same = |call: Call| [call.clone(), call];
        let pairs = [
            same(call(Operation::AllReduce(ReduceOp::Sum), 1, &[], &[], 7)),
            same(call(Operation::ReduceScatter(ReduceOp::Sum), 3, &[1, 2], &[], 9)),
            same(call(Operation::Scatter { root: 1 }, 3, &[1, 2], &[], 9)),
            same(call(Operation::Broadcast { root: 0 }, 1, &[], &[], 9)),
            same(call(Operation::Barrier, 1, &[], &[], 0)),
            [call(Operation::AllGather, 2, &[], &[3, 1], 6), call(Operation::AllGather, 2, &[], &[3, 1], 2)],
            [call(Operation::AllToAll, 1, &[3, 1], &[3, 2], 4), call(Operation::AllToAll, 1, &[2, 5], &[1, 5], 7)],
            [call(Operation::Send, 1, &[], &[], 4), call(Operation::Receive, 1, &[], &[], 4)],
        ];
        for pair in pairs {
            for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let given = outgoing(&pair[from], from, to).map(|given| given.len());
                assert_eq!(given, incoming(&pair[to], from, to), "{} from {from} to {to}", pair[0]);
            }
        }
    }
}
