//! What is reduced, gathered and put away as one: the buckets of a plan, and who keeps which elements of them.

use super::bucket::{self, Packing};
use super::{Bucket, parks, reduces_each, shards};
use crate::cluster::{Axis, Coordinate, Mesh};
use crate::config::ZeroLevel;
use crate::memory::Tiers;
use crate::params::ParamRecord;
use crate::pipeline::Stages;

/// What decides the units of a plan, beside its records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division<'a> {
    pub mesh: &'a Mesh,
    pub coordinate: Coordinate,
    pub stages: &'a Stages,
    pub zero: ZeroLevel,
    pub tiers: Tiers,
    pub max_splits: usize,
    /// Whether the optimizer updates each element by itself, so that parameters may be cut anywhere; of another one each
    /// parameter goes to an owner.
    pub element_wise: bool,
}

/// The units of a plan, in the three orders in which they are reduced or gathered.
#[derive(Debug, Default)]
pub(super) struct Units {
    pub buckets: Vec<Bucket>,
    pub tied: Vec<Bucket>,
    pub frozen: Vec<Bucket>,
}

impl Division<'_> {
    /// Packs the units of these records, and divides them over the replicas; the records learn what they are divided into.
    pub fn units(self, records: &mut [ParamRecord]) -> Units {
        let parks = parks(self.zero, self.tiers);
        let is_bridged = self.mesh.is_bridged();
        for record in &mut *records {
            // Small ones that have no gradient, such as running statistics, stay.
            let is_large = record.trainable || record.global_shape.len() > 1;
            record.parked = parks && record.held && is_large && !(is_bridged && record.is_tied_over_stages());
            record.divide(None, &self.coordinate);
        }
        let each = reduces_each(self.zero, self.tiers);
        let packing = Packing { max_splits: self.max_splits, gathers: parks, each, stages: self.stages };
        let mut units = Units {
            buckets: bucket::pack(records, packing),
            tied: bucket::pack_tied(records),
            frozen: bucket::pack_frozen(records, packing),
        };
        self.cut(&mut units, records);
        let cut = units.all().filter(|bucket| !bucket.shards.is_empty());
        let shards: Vec<_> =
            cut.flat_map(|bucket| shards::shards_of(bucket, records, self.coordinate.along(bucket.axis))).collect();
        for (member, shard) in shards {
            records[member].divide(Some(shard), &self.coordinate);
        }
        units
    }

    /// Divides the units, where something is sharded.
    fn cut(self, units: &mut Units, records: &[ParamRecord]) {
        // What stages of different widths share is summed over all ranks that hold it, of which none is alike.
        let is_bridged = self.mesh.is_bridged();
        let mut tied: Vec<&mut Bucket> = units.tied.iter_mut().filter(|_| !is_bridged).collect();
        let mut trained: Vec<&mut Bucket> = units.buckets.iter_mut().collect();
        for axis in [Axis::Data, Axis::ExpertData] {
            let ranks = self.mesh.sizes_in(self.coordinate.pipeline).along(axis);
            if self.zero == ZeroLevel::Off || (self.zero != ZeroLevel::V3 && ranks == 1) {
                continue;
            }
            let frozen = units.frozen.iter_mut().filter(|bucket| bucket.axis == axis);
            frozen.for_each(|bucket| shards::cut_evenly(bucket, records, ranks));
            let of_axis = |buckets: &mut [&mut Bucket], f: &mut dyn FnMut(&mut [&mut Bucket])| {
                let mut own: Vec<&mut Bucket> =
                    buckets.iter_mut().filter(|bucket| bucket.axis == axis).map(|bucket| &mut **bucket).collect();
                f(&mut own);
            };
            let mut cut = |buckets: &mut [&mut Bucket]| match self.element_wise {
                true => buckets.iter_mut().for_each(|bucket| shards::cut_evenly(bucket, records, ranks)),
                false => shards::give_to_owners(buckets, records, ranks),
            };
            of_axis(&mut trained, &mut cut);
            // Each by itself: the stages that share one must divide it alike, whatever else they hold.
            of_axis(&mut tied, &mut |tied| tied.chunks_mut(1).for_each(&mut cut));
        }
    }
}

impl Units {
    /// Those that have gradients.
    pub fn trained(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().chain(&self.tied)
    }

    /// All of them, in the order of their numbers.
    fn all(&self) -> impl Iterator<Item = &Bucket> {
        self.trained().chain(&self.frozen)
    }
}
