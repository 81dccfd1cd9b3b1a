//! Over the ranks of a group: three collectives at most, whatever the number of outputs.
//!
//! ```text
//! headers   what every replica has of every output: element type, dims, how much       all_gather
//! sums      those of all sums and means in one vector; who has none brings zeros       all_reduce
//! pieces    those of all concatenations, packed in words, padded to the longest        all_gather
//! ```
//!
//! All ranks know from the headers which of them follow.

use burn::tensor::DType;
use epl_comm::{ProcessGroup, ReduceOp};

use super::value::{Combine, Content, Pieces, Value, unlike};
use crate::error::{Error, Result};

type Named = (String, Combine, Option<Value>);

/// The element types that travel, by their number.
const DTYPES: [DType; 13] = [
    DType::F64,
    DType::F32,
    DType::Flex32,
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
];
/// The most dims that travel.
const DIMS: usize = 8;
/// Whether there is a value, its type, how many dims, these, how many words.
const HEADER: usize = 4 + DIMS;
const WORD: usize = size_of::<i64>();

/// What a replica has of an output.
struct Header {
    dtype: DType,
    dims: Vec<usize>,
}

/// Combines the values of all replicas. Collective.
pub(super) fn exchange(outputs: &mut [Named], replicas: &ProcessGroup) -> Result<()> {
    let mut mine = Vec::with_capacity(outputs.len() * HEADER);
    for (name, _, value) in &*outputs {
        mine.extend(header(name, value.as_ref())?);
    }
    let all = replicas.all_gather_counts(&mine)?;
    let mut agreed = Vec::with_capacity(outputs.len());
    for (index, (name, combine, _)) in outputs.iter().enumerate() {
        agreed.push(agree(name, *combine, all.iter().map(|rank| &rank[index * HEADER..][..HEADER]))?);
    }
    sum(outputs, &agreed, replicas)?;
    let words = |rank: &Vec<i64>| rank.chunks(HEADER).map(|header| header[HEADER - 1] as usize).sum::<usize>();
    match all.iter().map(words).max().unwrap_or(0) {
        0 => Ok(()),
        longest => {
            let has = |rank: &Vec<i64>, index: usize| rank[index * HEADER] == 1;
            let gathered = gather(outputs, longest, replicas, |member, index| has(&all[member], index))?;
            for (((_, combine, value), header), pieces) in outputs.iter_mut().zip(agreed).zip(gathered) {
                if let (Combine::Concat, Some(Header { dtype, dims })) = (*combine, header) {
                    *value = Some(Value { dtype, dims, content: Content::Pieces(pieces) });
                }
            }
            Ok(())
        }
    }
}

fn header(name: &str, value: Option<&Value>) -> Result<[i64; HEADER]> {
    let mut header = [0; HEADER];
    let Some(value) = value else { return Ok(header) };
    let dtype = DTYPES.iter().position(|dtype| *dtype == value.dtype);
    let (Some(dtype), true) = (dtype, value.dims.len() <= DIMS) else {
        return Err(Error::invalid(format!(
            "the output `{name}` of {:?} with dims {:?} cannot be merged over replicas: make it of whole numbers or \
             floats, of {DIMS} dims at most, or keep it local",
            value.dtype, value.dims
        )));
    };
    (header[0], header[1], header[2]) = (1, dtype as i64, value.dims.len() as i64);
    header[3..].iter_mut().zip(&value.dims).for_each(|(place, dim)| *place = *dim as i64);
    if let Content::Pieces(pieces) = &value.content {
        header[HEADER - 1] = packed(pieces) as i64;
    }
    Ok(header)
}

/// The words that pieces take: how many, then each with its first sample and its bytes.
fn packed(pieces: &[(u64, Vec<u8>)]) -> usize {
    1 + pieces.iter().map(|(_, bytes)| 2 + bytes.len().div_ceil(WORD)).sum::<usize>()
}

/// What the replicas that have an output agree on; none if no replica has it.
fn agree<'a>(name: &str, combine: Combine, ranks: impl Iterator<Item = &'a [i64]>) -> Result<Option<Header>> {
    let mut agreed: Option<Header> = None;
    for header in ranks.filter(|header| header[0] == 1) {
        let dims: Vec<usize> = header[3..][..header[2] as usize].iter().map(|dim| *dim as usize).collect();
        let dtype = DTYPES[header[1] as usize];
        match &agreed {
            None => agreed = Some(Header { dtype, dims }),
            Some(known) if known.dims != dims || known.dtype != dtype => {
                return Err(unlike(name, combine, (known.dtype, &known.dims), (dtype, &dims)));
            }
            Some(_) => {}
        }
    }
    Ok(agreed)
}

/// Sums and means.
fn sum(outputs: &mut [Named], agreed: &[Option<Header>], replicas: &ProcessGroup) -> Result<()> {
    let mut values = Vec::new();
    for ((_, combine, value), header) in outputs.iter().zip(agreed) {
        let Some(header) = header.as_ref().filter(|_| *combine != Combine::Concat) else { continue };
        match value.as_ref().map(|value| &value.content) {
            Some(Content::Sums(sums, weight)) => {
                values.extend(sums);
                values.push(*weight);
            }
            _ => values.resize(values.len() + header.dims.iter().product::<usize>() + 1, 0.0),
        }
    }
    if values.is_empty() {
        return Ok(());
    }
    let sums = replicas.all_reduce_values(&values, ReduceOp::Sum)?;
    let mut rest = &sums[..];
    for ((_, combine, value), header) in outputs.iter_mut().zip(agreed) {
        let Some(header) = header.as_ref().filter(|_| *combine != Combine::Concat) else { continue };
        let (own, others) = rest.split_at(header.dims.iter().product::<usize>() + 1);
        let (weight, own) = own.split_last().expect("the weight stands last");
        let content = Content::Sums(own.to_vec(), *weight);
        *value = Some(Value { dtype: header.dtype, dims: header.dims.clone(), content });
        rest = others;
    }
    Ok(())
}

/// The pieces of all replicas, by output. `has` tells which member has which output.
fn gather(
    outputs: &[Named],
    longest: usize,
    replicas: &ProcessGroup,
    has: impl Fn(usize, usize) -> bool,
) -> Result<Vec<Pieces>> {
    let mut words = Vec::with_capacity(longest);
    for (_, _, value) in outputs {
        if let Some(Value { content: Content::Pieces(pieces), .. }) = value {
            pack(pieces, &mut words);
        }
    }
    words.resize(longest, 0);
    let mut gathered: Vec<Pieces> = outputs.iter().map(|_| Vec::new()).collect();
    for (member, words) in replicas.all_gather_counts(&words)?.into_iter().enumerate() {
        let mut words = words.into_iter();
        for (index, (_, combine, _)) in outputs.iter().enumerate() {
            if *combine == Combine::Concat && has(member, index) {
                gathered[index].extend(unpack(&mut words));
            }
        }
    }
    Ok(gathered)
}

fn pack(pieces: &[(u64, Vec<u8>)], words: &mut Vec<i64>) {
    words.push(pieces.len() as i64);
    for (first, bytes) in pieces {
        words.extend([first.cast_signed(), bytes.len() as i64]);
        words.extend(bytes.chunks(WORD).map(|chunk| {
            let mut word = [0; WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            i64::from_ne_bytes(word)
        }));
    }
}

fn unpack(words: &mut impl Iterator<Item = i64>) -> Pieces {
    let mut next = || words.next().unwrap_or(0);
    let pieces = next();
    let mut piece = |_| {
        let (first, len) = (next().cast_unsigned(), next() as usize);
        let mut bytes: Vec<u8> = (0..len.div_ceil(WORD)).flat_map(|_| next().to_ne_bytes()).collect();
        bytes.truncate(len);
        (first, bytes)
    };
    (0..pieces).map(&mut piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_unpacked_as_they_were_packed() {
        let pieces = vec![(7, vec![1, 2, 3]), (u64::MAX, vec![]), (9, (0..=20).collect())];
        let mut words = Vec::new();
        pack(&pieces, &mut words);
        assert_eq!(words.len(), packed(&pieces));
        assert_eq!(unpack(&mut words.into_iter().chain([0, 0])), pieces);
    }
}
