//! What a memory estimate reads from a plan.

use super::bucket::{self, Packing};
use super::resolved::Plan;
use super::units::{parks, reduces_each};
use crate::config::ZeroLevel;
use crate::memory::{ElementBytes, OptimizerState, ParamMemory};
use crate::params::{Bucket, ParamRecord};

impl Plan {
    /// What this rank holds of each parameter, for an optimizer that keeps so much state.
    pub(crate) fn held(&self, state: OptimizerState) -> Vec<ParamMemory> {
        let held = self.params.records.iter().filter(|record| record.held);
        held.map(|record| self.memory_of(record, state)).collect()
    }

    fn memory_of(&self, record: &ParamRecord, state: OptimizerState) -> ParamMemory {
        let (elements, whole) = (record.numel(), state.numel(&record.shape()));
        let share = match (&record.shard, self.zero) {
            (_, ZeroLevel::Off) => None,
            (None, _) => Some((elements as u64, whole)),
            (Some(shard), _) => {
                let kept = shard.range.len();
                // Of a part of a tensor only an element-wise optimizer keeps state.
                let state = if kept == elements { whole } else { state.numel(&[kept]) };
                Some((kept as u64, state))
            }
        };
        // An average lies where what it follows does.
        let followed = record.average.as_ref().and_then(|average| self.record(&average.of));
        let is_tied_over_widths = self.mesh.is_bridged() && record.is_tied_over_stages();
        ParamMemory {
            elements: elements as u64,
            state: whole,
            bytes: ElementBytes::of(record.dtype.size() as u64),
            replicas: if is_tied_over_widths { 1 } else { self.ranks_over(record.reduced_over()) as u64 },
            trainable: record.trainable,
            parks: followed.unwrap_or(record).may_park() && !is_tied_over_widths,
            share,
        }
    }

    /// Bytes of the largest bucket, if so much were sharded.
    pub(crate) fn largest_bucket(&self, zero: ZeroLevel) -> u64 {
        let (gathers, each) = (parks(zero, self.tiers), reduces_each(zero, self.tiers));
        let packing = Packing { max_splits: self.max_splits, gathers, each, stages: &self.stages };
        let records = self.records();
        let trained = bucket::pack(records, packing).into_iter().chain(bucket::pack_tied(records));
        trained.map(|bucket| bucket.bytes()).max().unwrap_or(0) as u64
    }

    /// Bytes of the largest bucket that is reduced: where buckets are what is gathered, of one that would be of several
    /// segments otherwise.
    pub(crate) fn reduced_bucket(&self) -> u64 {
        match self.parks() {
            true => self.largest_bucket(ZeroLevel::V2),
            false => self.params.trained().map(Bucket::bytes).max().unwrap_or(0) as u64,
        }
    }

    /// Bytes of the parameters of the two neighbouring segments of this stage that have the most.
    pub(crate) fn two_segments(&self) -> u64 {
        let bytes = self.segment_bytes(|record| record.held.then_some(record.numel() * record.dtype.size()));
        let own = self.stages.of_stage(self.stage()).cloned();
        let pairs = own.flat_map(|part| part.clone().map(move |segment| segment..(segment + 2).min(part.end)));
        pairs.map(|pair| pair.map(|segment| bytes[segment]).sum()).max().unwrap_or(0)
    }

    /// By segment, the bytes that its parameters count.
    pub(crate) fn segment_bytes(&self, bytes: impl Fn(&ParamRecord) -> Option<usize>) -> Vec<u64> {
        let mut of = vec![0; self.segments.len()];
        for (record, bytes) in self.records().iter().filter_map(|record| Some((record, bytes(record)?))) {
            record.segments.iter().for_each(|segment| of[*segment] += bytes as u64);
        }
        of
    }
}
