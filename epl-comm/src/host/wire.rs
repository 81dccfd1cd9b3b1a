//! Calls as rows of numbers, for members that share no memory.
//!
//! ```text
//! kind, reduction, root, type, dim, split_dim, rows, number of the call
//! length, extents | length, sent to each | length, received from each | bytes, name
//! 0, or 1 and the call that this one is a stage of, in the same way
//! ```
//!
//! Nothing is cut, however long it is: members that compare what they read find what they would find in one memory.

use core::hash::{Hash, Hasher};
use std::sync::Arc;

use burn::tensor::{BoolStore, DType, Shape};
use rustc_hash::FxHasher;

use crate::error::{Error, Result};
use crate::operation::{Call, Operation, ReduceOp};
use crate::per_member::PerMember;

/// What travels: a type is told by its place here.
const TYPES: [DType; 15] = [
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
pub(crate) fn digest(call: &Call) -> u64 {
    let digest = match call.operation {
        // One end of a link sends and the other receives, by its making.
        Operation::Send | Operation::Receive => {
            Call { operation: Operation::Broadcast { root: 0 }, ..call.clone() }.digest()
        }
        Operation::Split if call.part_of.is_none() => {
            let mut hasher = FxHasher::default();
            (call.dtype, &call.name).hash(&mut hasher);
            Some(hasher.finish())
        }
        _ => call.digest(),
    };
    digest.map_or(0, |digest| digest.max(1))
}

/// The numbers of a call.
///
/// # Errors
///
/// [`Error::Invalid`] when its element type is none that travels.
pub(crate) fn encode(call: &Call) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    let mut next = Some(call);
    while let Some(call) = next {
        write(call, &mut numbers)?;
        next = call.part_of.as_deref();
        numbers.push(u64::from(next.is_some()));
    }
    Ok(numbers)
}

/// The call again, whatever comes behind its numbers; none where they are not one. What it is a stage of is no stage
/// itself.
pub(crate) fn decode(numbers: &[u64]) -> Option<Call> {
    let mut rest = Rest(numbers);
    let call = rest.call()?;
    match rest.number()? {
        0 => Some(call),
        1 => {
            let whole = rest.call()?;
            (rest.number()? == 0).then(|| Call { part_of: Some(Arc::new(whole)), ..call })
        }
        _ => None,
    }
}

fn write(call: &Call, numbers: &mut Vec<u64>) -> Result<()> {
    let dtype = TYPES.iter().position(|dtype| *dtype == call.dtype).ok_or_else(|| {
        Error::invalid(format!("{call}: {} does not travel; cast() it to a plain number", call.dtype.name()))
    })?;
    let (kind, root) = kind(call.operation);
    let op = OPS.iter().position(|op| Some(*op) == call.operation.reduction()).unwrap_or(0);
    let dim = |dim: Option<usize>| dim.map_or(0, |dim| dim + 1);
    let fixed = [kind, op, root, dtype, dim(call.dim), dim(call.split_dim), call.rows];
    numbers.extend(fixed.map(|number| number as u64));
    numbers.push(call.sequence);
    list(call.shape.iter().copied(), numbers);
    list(call.send.iter(), numbers);
    list(call.receive.iter(), numbers);
    let name = call.name.as_bytes();
    numbers.push(name.len() as u64);
    numbers.extend(name.chunks(8).map(|part| {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(bytes)
    }));
    Ok(())
}

fn list(own: impl ExactSizeIterator<Item = usize>, numbers: &mut Vec<u64>) {
    numbers.push(own.len() as u64);
    numbers.extend(own.map(|number| number as u64));
}

/// Numbers that are taken from the front.
struct Rest<'a>(&'a [u64]);

impl Rest<'_> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*number)
    }

    fn index(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    fn dim(&mut self) -> Option<Option<usize>> {
        Some(self.index()?.checked_sub(1))
    }

    fn list(&mut self) -> Option<Vec<usize>> {
        let len = self.index()?;
        let (list, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        list.iter().map(|number| usize::try_from(*number).ok()).collect()
    }

    fn text(&mut self) -> Option<String> {
        let len = self.index()?;
        let (text, rest) = self.0.split_at_checked(len.div_ceil(8))?;
        self.0 = rest;
        let mut bytes: Vec<u8> = text.iter().flat_map(|number| number.to_le_bytes()).collect();
        bytes.truncate(len);
        String::from_utf8(bytes).ok()
    }

    /// A call, without the one that it is a stage of.
    fn call(&mut self) -> Option<Call> {
        let (kind, op, root, dtype) = (self.number()?, self.index()?, self.index()?, self.index()?);
        Some(Call {
            operation: operation(kind, *OPS.get(op)?, root)?,
            dtype: *TYPES.get(dtype)?,
            dim: self.dim()?,
            split_dim: self.dim()?,
            rows: self.index()?,
            sequence: self.number()?,
            shape: Shape::from(self.list()?),
            send: PerMember::from(&*self.list()?),
            receive: PerMember::from(&*self.list()?),
            name: self.text()?,
            part_of: None,
        })
    }
}

/// The number of an operation, and its root.
fn kind(operation: Operation) -> (usize, usize) {
    match operation {
        Operation::AllReduce(_) => (0, 0),
        Operation::Reduce { root, .. } => (1, root),
        Operation::AllGather => (2, 0),
        Operation::Gather { root } => (3, root),
        Operation::ReduceScatter(_) => (4, 0),
        Operation::Scatter { root } => (5, root),
        Operation::AllToAll => (6, 0),
        Operation::Broadcast { root } => (7, root),
        Operation::Send => (8, 0),
        Operation::Receive => (9, 0),
        Operation::Barrier => (10, 0),
        Operation::Split => (11, 0),
    }
}

fn operation(kind: u64, op: ReduceOp, root: usize) -> Option<Operation> {
    Some(match kind {
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(operation: Operation) -> Call {
        Call::new(operation, DType::F32, Shape::new([2, 3]))
    }

    fn split(name: &str) -> Call {
        Call { name: name.into(), ..plain(Operation::Split) }
    }

    /// A name of 5,000 bytes and one more.
    fn long(last: char) -> String {
        format!("{}{last}", "zähl".repeat(1000))
    }

    /// It comes back, is not one where the end is missing, and is not disturbed by what comes behind.
    fn check(call: &Call) -> Result<()> {
        let mut numbers = encode(call)?;
        for len in (0..numbers.len()).rev().take(200) {
            assert_eq!(decode(&numbers[..len]), None, "{len} of {} numbers of {call:?}", numbers.len());
        }
        numbers.extend([0, 1, u64::MAX]);
        assert_eq!(decode(&numbers).as_ref(), Some(call));
        Ok(())
    }

    #[test]
    fn every_operation_comes_back_as_it_was() -> Result<()> {
        for kind in 0..12 {
            for (index, op) in OPS.into_iter().enumerate() {
                let call = plain(operation(kind, op, 3 * index).unwrap_or(Operation::Barrier));
                assert_eq!(super::kind(call.operation).0 as u64, kind);
                check(&call)?;
            }
        }
        assert_eq!(operation(12, ReduceOp::Sum, 0), None);
        Ok(())
    }

    #[test]
    fn every_element_type_and_all_numbers_come_back_as_they_were() -> Result<()> {
        for (index, dtype) in TYPES.into_iter().enumerate() {
            check(&Call {
                dtype,
                shape: Shape::from(vec![index; index % 5]),
                dim: (index > 2).then_some(index),
                split_dim: (index < 9).then_some(0),
                rows: 7 * index,
                send: PerMember::from(&[1, 2, index][..]),
                receive: PerMember::same(index, 4),
                name: "größer ".repeat(index),
                sequence: 1 << 40,
                ..plain(Operation::AllToAll)
            })?;
        }
        let quantized = DType::QFloat(Default::default());
        let refused = encode(&Call { dtype: quantized, ..plain(Operation::Barrier) });
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        Ok(())
    }

    #[test]
    fn a_stage_comes_back_with_what_it_is_a_stage_of() -> Result<()> {
        let whole = Call { sequence: 5, receive: PerMember::same(6, 4), ..split(&long('a')) };
        let stage = Call { sequence: 9, part_of: Some(Arc::new(whole)), ..plain(Operation::AllGather) };
        check(&stage)?;
        let numbers = encode(&Call { part_of: Some(Arc::new(stage.clone())), ..stage })?;
        assert_eq!(decode(&numbers), None, "a stage of a stage");
        Ok(())
    }

    #[test]
    fn a_long_name_comes_back_to_its_end() -> Result<()> {
        for last in ['a', 'b'] {
            check(&split(&long(last)))?;
        }
        let read = |call: &Call| Ok::<_, Error>(decode(&encode(call)?));
        let (own, same, other) = (split(&long('a')), read(&split(&long('a')))?, read(&split(&long('b')))?);
        assert!(same.is_some_and(|same| own.agrees(0, &same, 1)));
        assert!(other.is_some_and(|other| !own.agrees(0, &other, 1)));
        Ok(())
    }

    #[test]
    fn numbers_that_are_no_call_are_none() -> Result<()> {
        let numbers = encode(&split("name"))?;
        // Lengths that are longer than what follows, and numbers of what does not exist.
        for place in [0, 1, 3, 8, 11, 12, 13, 15] {
            for wrong in [99, u64::MAX] {
                let mut numbers = numbers.clone();
                numbers[place] = wrong;
                assert_eq!(decode(&numbers), None, "{wrong} at {place}");
            }
        }
        Ok(())
    }

    #[test]
    fn both_ends_of_a_link_and_all_that_split_have_the_same_digest() {
        let call = |operation, len| Call::new(operation, DType::F32, Shape::new([len]));
        assert_eq!(digest(&call(Operation::Send, 4)), digest(&call(Operation::Receive, 4)));
        assert_ne!(digest(&call(Operation::Send, 4)), digest(&call(Operation::Receive, 5)));
        assert_eq!(digest(&split(&long('a'))), digest(&split(&long('a'))));
        assert_ne!(digest(&split(&long('a'))), digest(&split(&long('b'))));
        let stage = |name: &str| Call { part_of: Some(Arc::new(split(name))), ..plain(Operation::Barrier) };
        assert_eq!(digest(&stage(&long('a'))), digest(&stage(&long('a'))));
        assert_ne!(digest(&stage(&long('a'))), digest(&stage(&long('b'))));
        let uneven = Call { send: [1, 2][..].into(), ..plain(Operation::AllToAll) };
        assert_eq!(digest(&uneven), 0);
    }
}
