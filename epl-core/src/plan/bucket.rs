//! Which gradients are reduced together, and in which order.
//!
//! Backward runs from the last segment to the first, so buckets are packed in that order. A bucket starts when
//! the gradients of all its parameters are final, and buckets start in one fixed order on every rank: never in
//! order of readiness, which differs between ranks.

use std::cmp::Reverse;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::fuse;
use crate::params::{Bucket, ParamRecord, ParamTable};
use crate::schedule::Stages;

/// What else decides which gradients share a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing<'a> {
    /// The limit of the number of buckets.
    pub max_splits: usize,
    /// Whether buckets are what is gathered for a segment.
    pub gathers: bool,
    /// Whether they travel in every micro-batch.
    pub each: bool,
    /// Which stage runs which segments.
    pub stages: &'a Stages,
}

impl Packing<'_> {
    /// What only parameters share that may travel together: the part of the pipeline, where buckets travel in every
    /// micro-batch; the segments that use them, where buckets are what is gathered.
    fn room<'a>(&self, record: &'a ParamRecord) -> (&'a [usize], Option<usize>) {
        let holds = |part: &Range<usize>| part.contains(&record.first_segment());
        match (self.gathers, self.each) {
            (true, _) => (&record.segments, None),
            (false, true) => (&[], self.stages.parts().iter().position(holds)),
            (false, false) => (&[], None),
        }
    }
}

/// Packs the gradients of the trainable parameters that this stage alone holds into at most `max_splits` buckets, and one for each that is sparse.
///
/// A bucket never mixes axes or element types, so there are never fewer buckets than pairs of them; `max_splits` = 1
/// gives one a pair. They are filled by [`fuse`]; what that leaves over the limit is merged with a neighbour. Where they
/// travel in every micro-batch a bucket is of one part of the pipeline, too, and where they are gathered there is one for
/// each pair and segment.
pub(crate) fn pack(records: &[ParamRecord], packing: Packing<'_>) -> Vec<Bucket> {
    let is_own = |record: &ParamRecord| record.trainable && record.held && !record.is_tied_over_stages();
    let trained = (0..records.len()).filter(|index| is_own(&records[*index]));
    let (alone, order): (Vec<usize>, Vec<usize>) = trained.partition(|index| records[*index].sparse);
    let mut buckets = fill(records, order, packing);
    buckets.extend(alone.into_iter().map(|index| Bucket { sparse: true, ..Bucket::new(vec![index], records) }));
    // What is sparse comes last: before it starts, ranks wait for each other's counts.
    buckets.sort_by_key(|bucket| (Reverse(bucket.after_segment), bucket.sparse, bucket.members[0]));
    buckets
}

/// Packs the parameters that are gathered and have no gradient, as [`pack`] those that have one; but for moving averages.
pub(crate) fn pack_frozen(records: &[ParamRecord], packing: Packing<'_>) -> Vec<Bucket> {
    let is_frozen = |record: &ParamRecord| record.parked && !record.trainable && record.average.is_none();
    fill(records, (0..records.len()).filter(|index| is_frozen(&records[*index])).collect(), packing)
}

/// Packs the moving averages that are gathered, given with what they follow: as that is packed and cut, so that a rank keeps of
/// both the same elements.
pub(crate) fn pack_averages(table: &ParamTable, averages: &[(usize, usize)]) -> Vec<Bucket> {
    let mut left: Vec<(usize, usize)> =
        averages.iter().copied().filter(|(average, _)| table.records[*average].parked).collect();
    let mut buckets = Vec::new();
    for unit in table.units() {
        let shards = unit.shards_of(&table.records, 0);
        loop {
            // One of each member's: what lies on a rank is one piece of the whole.
            let taken = unit.members.iter().enumerate().filter_map(|(place, member)| {
                let found = left.iter().position(|(_, of)| of == member)?;
                Some((place, left.remove(found).0))
            });
            let (places, members): (Vec<usize>, Vec<usize>) = taken.unzip();
            if members.is_empty() {
                break;
            }
            let of_rank = |rank: usize| places.iter().map(|place| shards[*place].1.sizes[rank]).sum();
            let shards = (0..unit.shards.len()).map(of_rank).collect();
            buckets.push(Bucket { shards, ..Bucket::new(members, &table.records) });
        }
    }
    buckets
}

/// Fills buckets with these records.
fn fill(records: &[ParamRecord], mut order: Vec<usize>, packing: Packing<'_>) -> Vec<Bucket> {
    // Stable: inside one segment the order of the module.
    order.sort_by_key(|index| Reverse(records[*index].first_segment()));
    // Of each the place of the first one in its room.
    let mut first: FxHashMap<_, usize> = FxHashMap::default();
    let place = |(place, index): (usize, &usize)| *first.entry(packing.room(&records[*index])).or_insert(place);
    let rooms: Vec<usize> = order.iter().enumerate().map(place).collect();
    let key = |room: usize, record: &ParamRecord| (record.reduced_over(), record.dtype.name(), room);
    let bytes = |record: &ParamRecord| record.largest_numel() * record.dtype.size();
    let tensor = |(room, index): (&usize, &usize)| (key(*room, &records[*index]), bytes(&records[*index]));
    let tensors: Vec<_> = rooms.iter().zip(&order).map(tensor).collect();
    let max_splits = if packing.gathers { 1 } else { packing.max_splits };
    let filled = fuse(&tensors, max_splits).into_iter();
    let mut buckets: Vec<(usize, Bucket)> = filled
        .map(|places| {
            let members = places.iter().map(|place| order[*place]).collect();
            (rooms[places[0]], Bucket::new(members, records))
        })
        .collect();
    merge_down_to(max_splits, &mut buckets);
    buckets.into_iter().map(|(_, bucket)| bucket).collect()
}

/// Packs the gradients of the trainable parameters that this stage holds together with others: one bucket for the same
/// stages, axis and element type, in the order of the module.
pub(crate) fn pack_tied(records: &[ParamRecord]) -> Vec<Bucket> {
    let is_tied = |record: &ParamRecord| record.trainable && record.held && record.is_tied_over_stages();
    let mut buckets: Vec<Bucket> = Vec::new();
    for index in (0..records.len()).filter(|index| is_tied(&records[*index])) {
        let new = Bucket::new(vec![index], records);
        let same =
            |bucket: &&mut Bucket| bucket.matches(&new) && records[bucket.members[0]].stages == records[index].stages;
        match buckets.iter_mut().find(same) {
            Some(bucket) => {
                bucket.members.push(index);
                bucket.numel += new.numel;
            }
            None => buckets.push(new),
        }
    }
    buckets
}

/// Merges the lightest pair of neighbours of one axis, element type and room until there are few enough.
fn merge_down_to(max_splits: usize, buckets: &mut Vec<(usize, Bucket)>) {
    while buckets.len() > max_splits {
        let matches =
            |(room, first): &(_, Bucket), (other, second): &(_, Bucket)| room == other && first.matches(second);
        let next = |first: usize| (first + 1..buckets.len()).find(|second| matches(&buckets[first], &buckets[*second]));
        let pairs = (0..buckets.len()).filter_map(|first| next(first).map(|second| (first, second)));
        let weight = |pair: &(usize, usize)| buckets[pair.0].1.numel + buckets[pair.1].1.numel;
        let Some((first, second)) = pairs.min_by_key(weight) else { return };
        let (_, merged) = buckets.remove(second);
        let bucket = &mut buckets[first].1;
        bucket.members.extend(merged.members);
        bucket.numel += merged.numel;
        bucket.after_segment = bucket.after_segment.min(merged.after_segment);
    }
}

/// The buckets that start after a backward of `segment`, in fixed order: those that it completes, where gradients are reduced in
/// `each` micro-batch; else, after its last one, all up to there, given that `started` have.
pub(crate) fn ready(buckets: &[Bucket], each: bool, started: usize, segment: usize) -> Vec<usize> {
    if each {
        return after(buckets, segment).collect();
    }
    let count = buckets[started..].iter().take_while(|bucket| bucket.after_segment >= segment).count();
    (started..started + count).collect()
}

/// Those of buckets in fixed order that are complete after a backward of `segment`, and not before.
fn after(buckets: &[Bucket], segment: usize) -> Range<usize> {
    let from = buckets.partition_point(|bucket| bucket.after_segment > segment);
    from..from + buckets[from..].iter().take_while(|bucket| bucket.after_segment == segment).count()
}

/// Where gradients are reduced in each micro-batch: whether what travels is waited for before `segment` runs, as it needs memory
/// for what is gathered, or for a bucket that spans other segments, too.
pub(crate) fn needs_room(table: &ParamTable, segment: usize) -> bool {
    let spans_more = |bucket: &Bucket| bucket.members.iter().any(|member| table.records[*member].segments != [segment]);
    table.gathers() || table.buckets[after(&table.buckets, segment)].iter().any(spans_more)
}

/// Whether the `sent` rows of all `ranks` are fewer bytes than the whole gradient of so many `rows`, for what a rank receives from the
/// others.
///
/// The rows of n ranks go to all of them; a ring all-reduce of b bytes sends 2 b (n − 1) ÷ n to each.
pub(crate) fn rows_pay(sent: usize, ranks: usize, (rows, row_bytes): (usize, usize)) -> bool {
    let as_rows = sent * (row_bytes + size_of::<i64>()) * (ranks - 1) / ranks;
    as_rows < 2 * rows * row_bytes * (ranks - 1) / ranks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::record::tests::record;

    fn pack(records: &[ParamRecord], max_splits: usize) -> Vec<Bucket> {
        super::pack(records, Packing { max_splits, gathers: false, each: false, stages: &Stages::one(24) })
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
    fn what_is_sparse_is_alone() {
        let records =
            [record(0, 10, false), ParamRecord { sparse: true, ..record(0, 10, false) }, record(1, 10, false)];
        let buckets = pack(&records, 1);
        assert_eq!(members(&buckets), [vec![2, 0], vec![1]]);
        assert_eq!(buckets.iter().map(|bucket| bucket.sparse).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn what_is_gathered_is_of_the_same_segments() {
        let tied = ParamRecord { segments: vec![0, 2], ..record(0, 10, false) };
        let frozen = ParamRecord { parked: true, trainable: false, ..record(1, 10, false) };
        let records =
            [record(0, 10, false), tied, record(0, 10, true), frozen, record(1, 10, false), record(0, 5, false)];
        let stages = Stages::one(3);
        let packing = Packing { max_splits: 1, gathers: true, each: true, stages: &stages };
        assert_eq!(members(&super::pack(&records, packing)), [vec![4], vec![0, 5], vec![1], vec![2]]);
        assert_eq!(members(&pack_frozen(&records, packing)), [[3]]);
    }

    #[test]
    fn averages_are_cut_as_what_they_follow() {
        let average = |of: &str, numel: usize| {
            let decay = crate::model::decay::AverageDecay::Constant(0.9);
            let average = Some(crate::model::decay::MovingAverage { of: of.into(), decay });
            ParamRecord { parked: true, trainable: false, average, ..record(0, numel, false) }
        };
        let named =
            |name: &str, numel: usize| ParamRecord { name: name.into(), parked: true, ..record(0, numel, false) };
        let records =
            vec![named("a", 7), named("b", 3), named("c", 7), average("c", 7), average("a", 7), average("a", 7)];
        let averages = crate::params::averages::averages(&records);
        assert_eq!(averages, [(3, 2), (4, 0), (5, 0)]);
        let mut bucket = Bucket::new(vec![0, 1, 2], &records);
        bucket.shards = vec![6; 3];
        let table = ParamTable { buckets: vec![bucket], records, ..ParamTable::default() };
        let packed = pack_averages(&table, &averages);
        assert_eq!(members(&packed), [vec![4, 3], vec![5]]);
        assert_eq!(packed.iter().map(|bucket| bucket.shards.clone()).collect::<Vec<_>>(), [[6, 3, 5], [6, 1, 0]]);
        for rank in 0..3 {
            let shards = |bucket: &Bucket| bucket.shards_of(&table.records, rank);
            let followed = shards(&table.buckets[0]);
            assert_eq!(shards(&packed[0]), [(4, followed[0].1.clone()), (3, followed[2].1.clone())]);
            assert_eq!(shards(&packed[1]), [(5, followed[0].1.clone())]);
        }
        assert_eq!(
            members(&pack_frozen(
                &table.records,
                Packing { max_splits: 1, gathers: true, each: true, stages: &Stages::one(1) }
            )),
            [[0; 0]; 0]
        );
    }

    #[test]
    fn what_travels_in_every_micro_batch_is_of_one_part() {
        let records: Vec<_> = (0..6).map(|segment| record(segment, 10, false)).collect();
        let stages = Stages::new(vec![0..2, 2..3, 3..5, 5..6], 2);
        let packing = Packing { max_splits: 1, gathers: false, each: true, stages: &stages };
        assert_eq!(members(&super::pack(&records, packing)), [vec![5], vec![4, 3], vec![2], vec![1, 0]]);
        assert_eq!(members(&super::pack(&records, Packing { each: false, ..packing })), [[5, 4, 3, 2, 1, 0]]);
    }

    #[test]
    fn buckets_are_ready_in_one_run() {
        let records: Vec<_> = (0..6).map(|segment| record(segment, 10, false)).collect();
        let buckets = pack(&records, 4);
        assert_eq!(ready(&buckets, false, 0, 5), [0; 0]);
        assert_eq!(ready(&buckets, false, 0, 4), [0]);
        assert_eq!(ready(&buckets, false, 1, 0), [1, 2]);
    }

    #[test]
    fn in_each_micro_batch_those_of_a_segment_are_ready_behind_it() {
        let sparse = ParamRecord { sparse: true, ..record(2, 10, false) };
        let records = [record(0, 10, false), record(2, 10, false), record(2, 10, true), sparse, record(5, 10, false)];
        let packing = Packing { max_splits: 1, gathers: true, each: true, stages: &Stages::one(6) };
        let buckets = super::pack(&records, packing);
        assert_eq!(members(&buckets), [[4], [1], [2], [3], [0]]);
        let found = [6, 5, 4, 2, 1, 0].map(|segment| ready(&buckets, true, 0, segment));
        assert_eq!(found, [vec![], vec![0], vec![], vec![1, 2, 3], vec![], vec![4]]);
    }
}
