//! Calls and errors as bytes.

use core::time::Duration;
use std::sync::Arc;

use burn::tensor::{BoolStore, DType, Shape};

use crate::error::{Error, Result};
use crate::operation::{Call, Operation, ReduceOp};
use crate::per_member::PerMember;
use crate::rank::Rank;

/// The element types that travel, by their number.
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

/// Longer texts are cut, and say so: a message of what went wrong must not itself have to be waited for.
const LONGEST: usize = 2000;

/// Bytes that grow.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

/// Bytes that are taken from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Writer {
    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub(super) fn numbers(&mut self, numbers: impl ExactSizeIterator<Item = usize>) -> &mut Self {
        self.number(numbers.len() as u64);
        numbers.for_each(|number| {
            self.number(number as u64);
        });
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let cut = (0..=LONGEST.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let text =
            if cut < text.len() { format!("{} [{} bytes more]", &text[..cut], text.len() - cut) } else { text.into() };
        self.number(text.len() as u64).0.extend_from_slice(text.as_bytes());
        self
    }

    pub(super) fn named(&mut self, ranks: &[(Rank, String)]) -> &mut Self {
        self.number(ranks.len() as u64);
        ranks.iter().for_each(|(rank, text)| {
            self.number(rank.0 as u64).text(text);
        });
        self
    }

    pub(super) fn call(&mut self, call: &Call) -> Result<&mut Self> {
        let dtype = TYPES.iter().position(|dtype| *dtype == call.dtype).ok_or_else(|| {
            Error::invalid(format!("{call}: {} does not travel; cast() it to a plain number", call.dtype.name()))
        })?;
        let (kind, op, root) = parts(call.operation);
        let op = OPS.iter().position(|other| Some(*other) == op).unwrap_or(0);
        let dim = |dim: Option<usize>| dim.map_or(0, |dim| dim as u64 + 1);
        self.number(kind).number(op as u64).number(root as u64).number(dtype as u64);
        self.numbers(call.shape.iter().copied()).number(dim(call.dim)).number(dim(call.split_dim));
        self.number(call.rows as u64).numbers(call.send.iter()).numbers(call.receive.iter());
        self.text(&call.name).number(call.sequence).number(u64::from(call.part_of.is_some()));
        match &call.part_of {
            Some(whole) => self.call(whole),
            None => Ok(self),
        }
    }

    /// One of the errors that are nobody's in particular; nothing for another one.
    pub(super) fn error(&mut self, error: &Error) -> &mut Self {
        match error {
            Error::Mismatch { group, sequence, first, first_call, second, second_call, second_is_odd } => {
                self.number(1).text(group).number(*sequence).number(first.0 as u64).text(first_call);
                self.number(second.0 as u64).text(second_call).number(u64::from(*second_is_odd))
            }
            Error::Deadlock { circle } => self.number(2).named(circle),
            Error::Timeout { call, waited, missing } => {
                self.number(3).text(call).number(waited.as_millis() as u64).named(missing)
            }
            Error::Medium { message } => self.number(4).text(message),
            Error::Invalid { message } => self.number(5).text(message),
            _ => self.number(0),
        }
    }
}

impl Reader<'_> {
    pub(super) fn number(&mut self) -> Result<u64> {
        let (number, rest) = self.0.split_first_chunk().ok_or_else(garbled)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    pub(super) fn index(&mut self) -> Result<usize> {
        usize::try_from(self.number()?).map_err(|_| garbled())
    }

    pub(super) fn rank(&mut self) -> Result<Rank> {
        self.index().map(Rank)
    }

    pub(super) fn numbers(&mut self) -> Result<Vec<usize>> {
        let count = self.index()?;
        if count > self.0.len() / 8 {
            return Err(garbled());
        }
        (0..count).map(|_| self.index()).collect()
    }

    pub(super) fn text(&mut self) -> Result<String> {
        let len = self.index()?;
        let (text, rest) = self.0.split_at_checked(len).ok_or_else(garbled)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| garbled())
    }

    pub(super) fn named(&mut self) -> Result<Vec<(Rank, String)>> {
        let count = self.index()?;
        (0..count).map(|_| Ok((self.rank()?, self.text()?))).collect()
    }

    /// A call, and the one that it is a stage of; that is no stage itself.
    pub(super) fn call(&mut self) -> Result<Call> {
        let call = self.plain_call()?;
        match self.number()? {
            0 => Ok(call),
            _ => {
                let whole = self.plain_call()?;
                if self.number()? != 0 {
                    return Err(garbled());
                }
                Ok(Call { part_of: Some(Arc::new(whole)), ..call })
            }
        }
    }

    fn plain_call(&mut self) -> Result<Call> {
        let (kind, op, root, dtype) = (self.number()?, self.index()?, self.index()?, self.index()?);
        let op = *OPS.get(op).ok_or_else(garbled)?;
        let dim = |dim: usize| dim.checked_sub(1);
        Ok(Call {
            operation: operation(kind, op, root).ok_or_else(garbled)?,
            dtype: *TYPES.get(dtype).ok_or_else(garbled)?,
            shape: Shape::from(self.numbers()?),
            dim: dim(self.index()?),
            split_dim: dim(self.index()?),
            rows: self.index()?,
            send: PerMember::from(&*self.numbers()?),
            receive: PerMember::from(&*self.numbers()?),
            name: self.text()?,
            sequence: self.number()?,
            part_of: None,
        })
    }

    pub(super) fn error(&mut self) -> Result<Option<Error>> {
        Ok(Some(match self.number()? {
            0 => return Ok(None),
            1 => Error::Mismatch {
                group: self.text()?,
                sequence: self.number()?,
                first: self.rank()?,
                first_call: self.text()?,
                second: self.rank()?,
                second_call: self.text()?,
                second_is_odd: self.number()? != 0,
            },
            2 => Error::Deadlock { circle: self.named()? },
            3 => Error::Timeout {
                call: self.text()?,
                waited: Duration::from_millis(self.number()?),
                missing: self.named()?,
            },
            4 => Error::Medium { message: self.text()? },
            5 => Error::Invalid { message: self.text()? },
            _ => return Err(garbled()),
        }))
    }
}

fn garbled() -> Error {
    let message = "a message of another process makes no sense; run the same program in all processes".to_string();
    Error::Medium { message }
}

fn parts(operation: Operation) -> (u64, Option<ReduceOp>, usize) {
    let (kind, root) = match operation {
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
    };
    (kind, operation.reduction(), root)
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

    #[test]
    fn a_call_comes_back_as_it_was() -> Result<()> {
        for kind in 0..12 {
            for (index, op) in OPS.into_iter().enumerate() {
                let operation = operation(kind, op, index).ok_or_else(garbled)?;
                let call = Call {
                    dim: (index > 2).then_some(index),
                    split_dim: (index < 2).then_some(0),
                    rows: 7,
                    send: PerMember::from(&[1, 2, index][..]),
                    name: "größer".into(),
                    sequence: 1 << 40,
                    part_of: (index == 1).then(|| Arc::new(Call::new(operation, DType::F64, Shape::new([5])))),
                    ..Call::new(operation, TYPES[3 * index], Shape::new([2, 3, index]))
                };
                let mut bytes = Writer::default();
                bytes.call(&call)?.number(5);
                let mut reader = Reader(&bytes.0);
                assert_eq!((reader.call()?, reader.number()?, reader.0.len()), (call, 5, 0));
            }
        }
        Ok(())
    }

    #[test]
    fn shared_errors_come_back_and_others_do_not() -> Result<()> {
        let named = || vec![(Rank(3), "whose last call was".to_string()), (Rank(4), String::new())];
        let errors = [
            Error::Deadlock { circle: named() },
            Error::Timeout { call: "barrier".into(), waited: Duration::from_millis(1500), missing: named() },
            Error::Medium { message: "MPI".into() },
            Error::invalid("no"),
        ];
        for error in errors {
            let mut bytes = Writer::default();
            bytes.error(&error);
            assert_eq!(Reader(&bytes.0).error()?, Some(error));
            for len in 0..bytes.0.len() {
                assert!(Reader(&bytes.0[..len]).error().is_err());
            }
        }
        let mut bytes = Writer::default();
        bytes.error(&Error::Staging { message: "no".into() });
        assert_eq!(Reader(&bytes.0).error()?, None);
        Ok(())
    }

    #[test]
    fn a_long_text_is_cut_and_says_so() -> Result<()> {
        let mut bytes = Writer::default();
        bytes.text(&"ö".repeat(1500));
        let text = Reader(&bytes.0).text()?;
        assert!(text.starts_with("öö") && text.ends_with("[1000 bytes more]"), "{text}");
        Ok(())
    }
}
