//! What is reduced, gathered and put away as one: the buckets of a plan, and who keeps which elements of them.

use super::bucket::{self, Packing};
use super::shards;
use crate::config::ZeroLevel;
use crate::memory::{Tier, Tiers};
use crate::params::averages::averages;
use crate::params::{Bucket, Form, Home, ParamRecord, ParamTable, Residency};
use crate::schedule::Stages;
use crate::topology::cluster::{Axis, Coordinate, Mesh};

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

impl Division<'_> {
    /// Packs the units of these records, divides them over the replicas, and says where they lie.
    pub fn table(self, mut records: Vec<ParamRecord>) -> ParamTable {
        let parks = parks(self.zero, self.tiers);
        let is_bridged = self.mesh.is_bridged();
        for record in &mut records {
            record.parked = parks && record.held && record.may_park() && !(is_bridged && record.is_tied_over_stages());
            record.divide(None, &self.coordinate);
        }
        let averages = averages(&records);
        averages.iter().for_each(|(average, of)| records[*average].parked = records[*of].parked);
        let each = reduces_each(self.zero, self.tiers);
        let packing = Packing { max_splits: self.max_splits, gathers: parks, each, stages: self.stages };
        let mut table = ParamTable {
            buckets: bucket::pack(&records, packing),
            tied: bucket::pack_tied(&records),
            frozen: bucket::pack_frozen(&records, packing),
            records,
        };
        self.cut(&mut table);
        let of_averages = bucket::pack_averages(&table, &averages);
        table.frozen.extend(of_averages);
        let rank = |axis| self.coordinate.along(axis);
        let cut = table.units().filter(|bucket| !bucket.shards.is_empty());
        let shards: Vec<_> = cut.flat_map(|bucket| bucket.shards_of(&table.records, rank(bucket.axis))).collect();
        for (member, shard) in shards {
            table.records[member].divide(Some(shard), &self.coordinate);
        }
        let records = std::mem::take(&mut table.records);
        for unit in table.units_mut() {
            let residency = self.residency(unit, &records);
            unit.lay_out(&records, rank(unit.axis), residency);
        }
        ParamTable { records, ..table }
    }

    /// Where a unit lies that is cut.
    fn residency(self, unit: &Bucket, records: &[ParamRecord]) -> Residency {
        let (Tiers { parameters, gradients, state }, is_cut) = (self.tiers, !unit.shards.is_empty());
        let is_on_device = self.tiers == Tiers::all(Tier::Device);
        Residency {
            parameters: match unit.members.iter().all(|member| records[*member].parked) {
                true => Home::Flat { tier: parameters, is_shard: self.zero == ZeroLevel::V3 },
                false => Home::Model,
            },
            scatters: self.zero.shards_gradients() && is_cut,
            gradients,
            update: match (is_cut || !is_on_device, self.element_wise) {
                (false, _) => Form::Model,
                (true, true) => Form::Shards(state),
                (true, false) => Form::Owned(state),
            },
        }
    }

    /// Divides the units, where something is sharded.
    fn cut(self, units: &mut ParamTable) {
        let records = &units.records;
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

/// Whether parameters lie elsewhere between their uses: in shards, or away from the device.
pub(super) fn parks(zero: ZeroLevel, tiers: Tiers) -> bool {
    zero == ZeroLevel::V3 || tiers.parameters != Tier::Device
}

/// Whether gradients are reduced in every micro-batch.
pub(super) fn reduces_each(zero: ZeroLevel, tiers: Tiers) -> bool {
    matches!(zero, ZeroLevel::V2 | ZeroLevel::V3) || tiers.gradients != Tier::Device
}
