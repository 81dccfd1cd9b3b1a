//! Calls as rows of numbers, for members that share no memory.

use core::hash::Hasher;

use burn::tensor::{BoolStore, DType, Shape};
use rustc_hash::FxHasher;

use crate::operation::{Call, Operation, ReduceOp};
use crate::per_member::PerMember;

/// What can be moved: a type is told by its place here.
const DTYPES: [DType; 15] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
    DType::Bool(BoolStore::U8),
    DType::Bool(BoolStore::U32),
];

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max];

/// A number that calls have in common when they agree, and otherwise as good as never; 0 where only the calls themselves
/// tell.
pub(super) fn gist(call: &Call) -> u64 {
    let gist = match call.operation {
        // One end of a link sends and the other receives, by its making.
        Operation::Send | Operation::Receive => {
            Call::new(Operation::Send, call.dtype, call.shape.clone()).hashed_as(Operation::Broadcast { root: 0 })
        }
        Operation::Split => {
            let mut hasher = FxHasher::default();
            hasher.write(call.name.as_bytes());
            Some(hasher.finish())
        }
        _ => call.digest(),
    };
    gist.map_or(0, |gist| gist.max(1))
}

impl Call {
    fn hashed_as(self, operation: Operation) -> Option<u64> {
        Self { operation, ..self }.digest()
    }
}

/// A call, without its number.
pub(super) fn encode(call: &Call) -> Vec<u64> {
    let op = |op: ReduceOp| OPS.iter().position(|other| *other == op).unwrap_or_default();
    let (kind, op, root) = match call.operation {
        Operation::AllReduce(reduction) => (0, op(reduction), 0),
        Operation::Reduce { op: reduction, root } => (1, op(reduction), root),
        Operation::AllGather => (2, 0, 0),
        Operation::Gather { root } => (3, 0, root),
        Operation::ReduceScatter(reduction) => (4, op(reduction), 0),
        Operation::Scatter { root } => (5, 0, root),
        Operation::AllToAll => (6, 0, 0),
        Operation::Broadcast { root } => (7, 0, root),
        Operation::Send => (8, 0, 0),
        Operation::Receive => (9, 0, 0),
        Operation::Barrier => (10, 0, 0),
        Operation::Split => (11, 0, 0),
    };
    let dtype = DTYPES.iter().position(|other| *other == call.dtype).unwrap_or(DTYPES.len());
    let dim = |dim: Option<usize>| dim.map_or(0, |dim| dim + 1);
    let fixed = [kind, op, root, dtype, dim(call.dim), dim(call.split_dim), call.rows];
    let mut numbers: Vec<u64> = fixed.into_iter().map(|number| number as u64).collect();
    let name: Vec<u64> = call.name.bytes().map(u64::from).collect();
    let lists = [
        call.shape.iter().map(|extent| *extent as u64).collect(),
        call.send.iter().map(|count| count as u64).collect(),
        call.receive.iter().map(|count| count as u64).collect(),
        name,
    ];
    for list in lists {
        numbers.push(list.len() as u64);
        numbers.extend(list);
    }
    numbers
}

/// The call again; none where the numbers are not one.
pub(super) fn decode(numbers: &[u64], sequence: u64) -> Option<Call> {
    let mut numbers = numbers.iter().copied();
    let mut next = || numbers.next();
    let (kind, op, root) = (next()?, *OPS.get(next()? as usize)?, next()? as usize);
    let operation = match kind {
        0 => Operation::AllReduce(op),
        1 => Operation::Reduce { op, root },
        2 => Operation::AllGather,
        3 => Operation::Gather { root },
        4 => Operation::ReduceScatter(op),
        5 => Operation::Scatter { root },
        6 => Operation::AllToAll,
        7 => Operation::Broadcast { root },
        8 => Operation::Send,
        9 => Operation::Receive,
        10 => Operation::Barrier,
        11 => Operation::Split,
        _ => return None,
    };
    let dtype = *DTYPES.get(next()? as usize)?;
    let mut dim = || Some((next()? as usize).checked_sub(1));
    let (dim, split_dim) = (dim()?, dim()?);
    let rows = next()? as usize;
    let mut list = || {
        let len = next()? as usize;
        (0..len).map(|_| next().map(|number| number as usize)).collect::<Option<Vec<usize>>>()
    };
    let (shape, send, receive, name) = (list()?, list()?, list()?, list()?);
    let name = String::from_utf8(name.into_iter().map(|byte| byte as u8).collect()).ok()?;
    let (send, receive) = (PerMember::from(&*send), PerMember::from(&*receive));
    Some(Call {
        dim,
        split_dim,
        rows,
        send,
        receive,
        name,
        sequence,
        ..Call::new(operation, dtype, Shape::from(shape))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_comes_back_as_it_was() {
        let plain = |operation, dtype| Call::new(operation, dtype, Shape::new([2, 3]));
        let calls = [
            plain(Operation::AllReduce(ReduceOp::Mean), DType::BF16),
            plain(Operation::Reduce { op: ReduceOp::Max, root: 3 }, DType::I16),
            Call {
                dim: Some(0),
                split_dim: Some(1),
                rows: 5,
                send: [1, 0, 5][..].into(),
                receive: PerMember::same(2, 3),
                ..plain(Operation::AllToAll, DType::Bool(BoolStore::U32))
            },
            Call { name: "zähler".into(), ..plain(Operation::Split, DType::I64) },
            plain(Operation::Barrier, DType::F32),
        ];
        for call in calls {
            let numbers = encode(&call);
            let again = decode(&numbers, 7);
            assert_eq!(again, Some(Call { sequence: 7, ..call }));
            assert_eq!(decode(&numbers[..numbers.len() - 1], 7), None);
        }
    }

    #[test]
    fn both_ends_of_a_link_and_all_that_split_have_the_same_gist() {
        let call = |operation, len| Call::new(operation, DType::F32, Shape::new([len]));
        assert_eq!(gist(&call(Operation::Send, 4)), gist(&call(Operation::Receive, 4)));
        assert_ne!(gist(&call(Operation::Send, 4)), gist(&call(Operation::Receive, 5)));
        let split = |name: &str| Call { name: name.into(), ..call(Operation::Split, 2) };
        assert_eq!(gist(&split("a")), gist(&split("a")));
        assert_ne!(gist(&split("a")), gist(&split("b")));
    }
}
