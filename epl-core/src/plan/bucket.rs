//! Which gradients are reduced together, and in which order.
//!
//! Backward runs from the last segment to the first, so buckets are packed in that order. A bucket starts when
//! the gradients of all its parameters are final, and buckets start in one fixed order on every rank: never in
//! order of readiness, which differs between ranks.

use std::ops::Range;

use burn::tensor::DType;

use super::ParamRecord;
use crate::cluster::Axis;

/// Gradients that travel as one flat tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Indices into [`Plan::records`](super::Plan::records).
    pub members: Vec<usize>,
    /// The axis it is reduced over.
    pub axis: Axis,
    /// The element type of all members.
    pub dtype: DType,
    /// It starts after the backward of this segment.
    pub after_segment: usize,
    /// Elements of all members together.
    pub numel: usize,
}

/// Packs the gradients of all trainable parameters into about `max_splits` buckets.
///
/// A bucket never mixes axes or element types, and is closed when it holds its share of the bytes:
/// total ÷ (`max_splits` − 1), so that neighbours fill up and the remainder has one of its own. There are never
/// fewer buckets than pairs of (axis, element type); `max_splits` = 1 gives one a pair.
pub fn pack(records: &[ParamRecord], max_splits: usize) -> Vec<Bucket> {
    let mut order: Vec<usize> = (0..records.len()).filter(|index| records[*index].trainable).collect();
    // Stable: inside one segment the order of the module.
    order.sort_by_key(|index| core::cmp::Reverse(records[*index].first_segment()));
    let bytes = |index: usize| records[index].numel() * records[index].dtype.size();
    let total: usize = order.iter().map(|index| bytes(*index)).sum();
    let share = match max_splits {
        0 | 1 => usize::MAX,
        splits => total.div_ceil(splits - 1),
    };
    let mut closed: Vec<Bucket> = Vec::new();
    let mut open: Vec<Bucket> = Vec::new();
    for index in order {
        let record = &records[index];
        let (axis, dtype) = (record.reduced_over(), record.dtype);
        let place = open.iter().position(|bucket| bucket.axis == axis && bucket.dtype == dtype);
        let mut bucket = match place {
            Some(place) => open.remove(place),
            None => Bucket { members: Vec::new(), axis, dtype, after_segment: 0, numel: 0 },
        };
        bucket.members.push(index);
        bucket.numel += record.numel();
        bucket.after_segment = record.first_segment();
        if bucket.numel * dtype.size() >= share { closed.push(bucket) } else { open.push(bucket) }
    }
    closed.extend(open);
    closed.sort_by_key(|bucket| (core::cmp::Reverse(bucket.after_segment), bucket.members[0]));
    closed
}

/// The buckets that start after the backward of `segment`, given that `started` have: a run in fixed order.
pub(crate) fn ready(buckets: &[Bucket], started: usize, segment: usize) -> Range<usize> {
    let count = buckets[started..].iter().take_while(|bucket| bucket.after_segment >= segment).count();
    started..started + count
}
