//! Which gradients are reduced together, and in which order.
//!
//! Backward runs from the last segment to the first, so buckets are packed in that order. A bucket starts when
//! the gradients of all its parameters are final, and buckets start in one fixed order on every rank: never in
//! order of readiness, which differs between ranks.

use std::cmp::Reverse;
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
    /// Elements of all members together, on the rank that holds the most: the same on every rank, so that all pack alike.
    pub numel: usize,
}

/// Packs the gradients of all trainable parameters into at most `max_splits` buckets.
///
/// A bucket never mixes axes or element types, so there are never fewer buckets than pairs of them; `max_splits` = 1
/// gives one a pair. A bucket is closed when it holds its share of the bytes: total ÷ (`max_splits` − 1). What that
/// leaves over the limit is merged with a neighbour.
pub fn pack(records: &[ParamRecord], max_splits: usize) -> Vec<Bucket> {
    let mut order: Vec<usize> = (0..records.len()).filter(|index| records[*index].trainable).collect();
    // Stable: inside one segment the order of the module.
    order.sort_by_key(|index| Reverse(records[*index].first_segment()));
    let total: usize = order.iter().map(|index| records[*index].largest_numel() * records[*index].dtype.size()).sum();
    let share = match max_splits {
        0 | 1 => usize::MAX,
        splits => total.div_ceil(splits - 1),
    };
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut open: Vec<Bucket> = Vec::new();
    for index in order {
        let mut bucket = take_open(&mut open, &records[index]);
        bucket.add(index, &records[index]);
        if bucket.bytes() >= share { buckets.push(bucket) } else { open.push(bucket) }
    }
    buckets.extend(open);
    merge_down_to(max_splits, &mut buckets);
    buckets.sort_by_key(|bucket| (Reverse(bucket.after_segment), bucket.members[0]));
    buckets
}

impl Bucket {
    /// The bytes of all members together.
    pub fn bytes(&self) -> usize {
        self.numel * self.dtype.size()
    }

    fn add(&mut self, index: usize, record: &ParamRecord) {
        self.members.push(index);
        self.numel += record.largest_numel();
        self.after_segment = record.first_segment();
    }

    /// Whether the two may travel together.
    fn matches(&self, other: &Self) -> bool {
        (self.axis, self.dtype) == (other.axis, other.dtype)
    }
}

/// The bucket that is open for a record's axis and element type, or a new one.
fn take_open(open: &mut Vec<Bucket>, record: &ParamRecord) -> Bucket {
    let new =
        Bucket { members: Vec::new(), axis: record.reduced_over(), dtype: record.dtype, after_segment: 0, numel: 0 };
    match open.iter().position(|bucket| bucket.matches(&new)) {
        Some(place) => open.remove(place),
        None => new,
    }
}

/// Merges the lightest pair of neighbours of one axis and element type until there are few enough.
fn merge_down_to(max_splits: usize, buckets: &mut Vec<Bucket>) {
    while buckets.len() > max_splits {
        let next = |first: usize| (first + 1..buckets.len()).find(|second| buckets[first].matches(&buckets[*second]));
        let pairs = (0..buckets.len()).filter_map(|first| next(first).map(|second| (first, second)));
        let weight = |pair: &(usize, usize)| buckets[pair.0].numel + buckets[pair.1].numel;
        let Some((first, second)) = pairs.min_by_key(weight) else { return };
        let merged = buckets.remove(second);
        buckets[first].members.extend(merged.members);
        buckets[first].numel += merged.numel;
        buckets[first].after_segment = buckets[first].after_segment.min(merged.after_segment);
    }
}

/// The buckets that start after the backward of `segment`, given that `started` have: a run in fixed order.
pub(crate) fn ready(buckets: &[Bucket], started: usize, segment: usize) -> Range<usize> {
    let count = buckets[started..].iter().take_while(|bucket| bucket.after_segment >= segment).count();
    started..started + count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Cut, Origin};
    use burn::module::ParamId;

    fn record(segment: usize, numel: usize, expert: bool) -> ParamRecord {
        let cut = Cut { axis: Axis::Expert, dim: 0, parts: 1, range: 0..numel };
        ParamRecord {
            name: format!("segment{segment}"),
            id: ParamId::from(segment as u64),
            global_shape: vec![numel],
            cuts: if expert { vec![cut] } else { Vec::new() },
            dtype: DType::F32,
            trainable: true,
            origin: Origin::Drawn,
            segments: vec![segment],
            counted: true,
        }
    }

    fn members(buckets: &[Bucket]) -> Vec<Vec<usize>> {
        buckets.iter().map(|bucket| bucket.members.clone()).collect()
    }

    #[test]
    fn the_last_segment_comes_first() {
        let records: Vec<_> = (0..6).map(|segment| record(segment, 10, false)).collect();
        let buckets = pack(&records, 4);
        assert_eq!(members(&buckets), [[5, 4], [3, 2], [1, 0]]);
        assert_eq!(buckets.iter().map(|bucket| bucket.after_segment).collect::<Vec<_>>(), [4, 2, 0]);
        assert_eq!(members(&pack(&records, 1)), [[5, 4, 3, 2, 1, 0]]);
    }

    #[test]
    fn axes_are_not_mixed_and_the_limit_holds() {
        let records: Vec<_> = (0..24).map(|segment| record(segment, 10, segment % 2 == 0)).collect();
        for max_splits in 1..30 {
            let buckets = pack(&records, max_splits);
            assert!(buckets.len() <= max_splits.max(2), "{} buckets, limit {max_splits}", buckets.len());
            let mut all: Vec<usize> = members(&buckets).concat();
            all.sort_unstable();
            assert_eq!(all, (0..24).collect::<Vec<_>>());
            for bucket in &buckets {
                assert!(bucket.members.iter().all(|index| records[*index].reduced_over() == bucket.axis));
                let last = bucket.members.iter().map(|index| records[*index].first_segment()).min();
                assert_eq!(Some(bucket.after_segment), last);
            }
        }
    }

    #[test]
    fn frozen_parameters_are_left_out() {
        let records = [record(0, 10, false), ParamRecord { trainable: false, ..record(1, 10, false) }];
        assert_eq!(members(&pack(&records, 5)), [[0]]);
    }

    #[test]
    fn buckets_are_ready_in_one_run() {
        let records: Vec<_> = (0..6).map(|segment| record(segment, 10, false)).collect();
        let buckets = pack(&records, 4);
        assert_eq!(ready(&buckets, 0, 5), 0..0);
        assert_eq!(ready(&buckets, 0, 4), 0..1);
        assert_eq!(ready(&buckets, 1, 0), 1..3);
    }
}
