//! Who keeps which elements of a bucket, under ZeRO.
//!
//! ```text
//! element-wise, 3 ranks    [ a a a a a a ┆ a b b b c c ┆ c c c c c · ]      · padding
//! whole tensors, 3 ranks   [ c c c c c c c ┆ a a a a a a a ┆ b b b ]
//! ```
//!
//! An optimizer that updates each element by itself works on any cut, so a bucket is cut evenly. One that looks at whole
//! tensors needs owners: each parameter, the largest one first, goes to the rank that has the least so far.
//!
//! After Rajbhandari, Rasley, Ruwase and He, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, 2020.

use std::cmp::Reverse;

use crate::params::{Bucket, ParamRecord};

/// Cuts a bucket evenly over `ranks` ranks, with padding at its end.
pub(crate) fn cut_evenly(bucket: &mut Bucket, records: &[ParamRecord], ranks: usize) {
    let numel: usize = bucket.members.iter().map(|member| records[*member].numel()).sum();
    bucket.shards = vec![numel.div_ceil(ranks); ranks];
}

/// Gives every member of buckets of one axis to one of `ranks` ranks.
pub(crate) fn give_to_owners(buckets: &mut [&mut Bucket], records: &[ParamRecord], ranks: usize) {
    let bytes = |member: usize| records[member].numel() * records[member].dtype.size();
    let mut all: Vec<usize> = buckets.iter().flat_map(|bucket| &bucket.members).copied().collect();
    all.sort_by_key(|member| (Reverse(bytes(*member)), *member));
    let (mut loads, mut owners) = (vec![0; ranks], vec![0; records.len()]);
    for member in all {
        let least = (0..ranks).min_by_key(|rank| loads[*rank]).unwrap_or(0);
        loads[least] += bytes(member);
        owners[member] = least;
    }
    for bucket in buckets {
        // Stable: inside one rank's the order stays.
        bucket.members.sort_by_key(|member| owners[*member]);
        bucket.shards = vec![0; ranks];
        for member in &bucket.members {
            bucket.shards[owners[*member]] += records[*member].numel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::record::tests::record;
    use std::ops::Range;

    fn bucket(members: Vec<usize>, records: &[ParamRecord]) -> Bucket {
        Bucket::new(members, records)
    }

    fn ranges(bucket: &Bucket, records: &[ParamRecord], rank: usize) -> Vec<Range<usize>> {
        bucket.shards_of(records, rank).into_iter().map(|(_, shard)| shard.range).collect()
    }

    #[test]
    fn an_even_cut_goes_through_parameters() {
        let records = [record(0, 7, false), record(0, 3, false), record(0, 7, false)];
        let mut bucket = bucket(vec![0, 1, 2], &records);
        cut_evenly(&mut bucket, &records, 3);
        assert_eq!(bucket.shards, [6, 6, 6]);
        assert_eq!(ranges(&bucket, &records, 0), [0..6, 0..0, 0..0]);
        assert_eq!(ranges(&bucket, &records, 1), [6..7, 0..3, 0..2]);
        assert_eq!(ranges(&bucket, &records, 2), [7..7, 3..3, 2..7]);
        let sizes: Vec<_> = bucket.shards_of(&records, 1).into_iter().map(|(_, shard)| shard.sizes).collect();
        assert_eq!(sizes, [[6, 1, 0], [0, 3, 0], [0, 2, 5]]);
    }

    #[test]
    fn more_ranks_than_elements() {
        let records = [record(0, 2, false)];
        let mut bucket = bucket(vec![0], &records);
        cut_evenly(&mut bucket, &records, 5);
        assert_eq!(bucket.shards, [1; 5]);
        assert_eq!((0..5).map(|rank| ranges(&bucket, &records, rank)[0].len()).collect::<Vec<_>>(), [1, 1, 0, 0, 0]);
    }

    #[test]
    fn owners_are_balanced_over_all_buckets() {
        let numels = [8, 1, 3, 5, 2, 3];
        let records: Vec<_> = numels.into_iter().map(|numel| record(0, numel, false)).collect();
        let (mut first, mut second) = (bucket(vec![0, 1, 2], &records), bucket(vec![3, 4, 5], &records));
        give_to_owners(&mut [&mut first, &mut second], &records, 2);
        assert_eq!(first.shards.iter().sum::<usize>() + second.shards.iter().sum::<usize>(), 22);
        let loads: Vec<usize> = (0..2).map(|rank| first.shards[rank] + second.shards[rank]).collect();
        assert_eq!(loads, [11, 11]);
        for bucket in [&first, &second] {
            for (member, shard) in bucket.shards_of(&records, 0) {
                assert!([0, records[member].numel()].contains(&shard.range.len()), "whole or not at all");
            }
        }
    }
}
