//! Ranges of tensors on the host.

use std::ops::Range;

use burn::tensor::TensorData;

/// A range of every dim of host data; the whole of it is not copied.
///
/// # Panics
///
/// When the ranges do not lie in its shape: a fault of the caller, who knows it.
pub fn cut(data: TensorData, ranges: &[Range<usize>]) -> TensorData {
    let shape = data.shape().to_vec();
    if is_whole(&shape, ranges) {
        return data;
    }
    let mut kept = Vec::new();
    cut_bytes(data.as_bytes(), data.dtype().size(), &shape, ranges, &mut kept);
    let shape: Vec<usize> = ranges.iter().map(Range::len).collect();
    TensorData::from_bytes_vec(kept, shape, data.dtype())
}

fn is_whole(shape: &[usize], ranges: &[Range<usize>]) -> bool {
    shape.iter().zip(ranges).all(|(extent, range)| *range == (0..*extent))
}

fn cut_bytes(bytes: &[u8], size: usize, shape: &[usize], ranges: &[Range<usize>], kept: &mut Vec<u8>) {
    let [range, inner @ ..] = ranges else { return kept.extend_from_slice(bytes) };
    let stride = shape[1..].iter().product::<usize>() * size;
    if is_whole(&shape[1..], inner) {
        return kept.extend_from_slice(&bytes[range.start * stride..range.end * stride]);
    }
    for index in range.clone() {
        cut_bytes(&bytes[index * stride..(index + 1) * stride], size, &shape[1..], inner, kept);
    }
}

/// The same tensor so many times, along a new first dim.
pub(super) fn repeat(data: &TensorData, times: usize) -> TensorData {
    let shape = [&[times], data.shape().as_slice()].concat();
    TensorData::from_bytes_vec(data.as_bytes().repeat(times), shape, data.dtype())
}
