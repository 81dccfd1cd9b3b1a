//! Which numbers of a member's buffer go to which other member.

use crate::host::fit::columns;
use crate::host::number::Number;
use crate::operation::{Call, Operation};

/// Some columns of some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    rows: usize,
    /// From one row to the next.
    stride: usize,
    /// The first column, and how many.
    start: usize,
    width: usize,
}

impl Cut {
    fn row(start: usize, width: usize) -> Self {
        Self { rows: 1, stride: width, start, width }
    }

    pub(super) fn len(self) -> usize {
        self.rows * self.width
    }

    /// The rows, in a buffer.
    pub(super) fn pieces<N: Number>(self, buffer: &[N]) -> impl Iterator<Item = &[N]> {
        (0..self.rows).map(move |row| &buffer[row * self.stride + self.start..][..self.width])
    }

    /// The numbers, if they lie in a row.
    pub(super) fn in_a_row<N: Number>(self, buffer: &[N]) -> Option<&[N]> {
        (self.rows == 1 || self.width == self.stride).then(|| &buffer[self.start..][..self.len()])
    }
}

/// What a member gives to another, or to itself. None when nothing goes that way.
pub(super) fn outgoing(call: &Call, from: usize, to: usize) -> Option<Cut> {
    let whole = || Cut::row(0, call.shape.num_elements());
    let columns = || {
        let columns = columns(&call.send, to);
        Cut { rows: call.rows, stride: call.send.total(), start: columns.start, width: columns.len() }
    };
    match call.operation {
        Operation::AllReduce(_) | Operation::AllGather | Operation::Split => Some(whole()),
        Operation::Reduce { root, .. } | Operation::Gather { root } => (root == to).then(whole),
        Operation::ReduceScatter(_) => Some(columns()),
        Operation::Scatter { root } => (root == from).then(columns),
        Operation::AllToAll => Some(Cut::row(call.send.before(to), call.send[to])),
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
                let given = outgoing(&pair[from], from, to).map(Cut::len);
                assert_eq!(given, incoming(&pair[to], from, to), "{} from {from} to {to}", pair[0]);
            }
        }
    }

    #[test]
    fn columns_are_rows_of_a_buffer() {
        let numbers: Vec<i32> = (0..12).collect();
        let cut = Cut { rows: 3, stride: 4, start: 1, width: 2 };
        assert_eq!(cut.pieces(&numbers).collect::<Vec<_>>(), [[1, 2], [5, 6], [9, 10]]);
        assert_eq!(cut.in_a_row(&numbers), None);
        assert_eq!(Cut::row(3, 2).in_a_row(&numbers), Some(&[3, 4][..]));
    }
}
