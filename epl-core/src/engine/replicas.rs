//! Whether replicas hold the same bits.
//!
//! Parameters that are replicated beside divided ones (norms, routers, biases after a row split) stay equal because
//! equal gradients update equal values in the same way. Nothing would fail if they did not: each rank would go on
//! with a model of its own. So it can be checked: one checksum a parameter is gathered over every axis along which
//! copies of it exist.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use epl_comm::ProcessGroup;

use super::Engine;
use crate::cluster::Axis;
use crate::error::{Error, Result};
use crate::plan::park::{gathered, members, moment_device};
use crate::plan::{Bucket, ParamRecord};
use crate::segment::Segmented;
use crate::stable_hash::stable_hash;

impl<M: Segmented> Engine<M> {
    /// Checks that every parameter has the same bits on all ranks that hold a copy of it. What lies in shards over the replicas
    /// (ZeRO v3) is gathered for that, one bucket after the other, and compared with what other slices and stages have of it.
    /// Collective.
    ///
    /// # Errors
    ///
    /// When one does not: its name, and the ranks that differ.
    pub fn check_replicas(&self) -> Result<()> {
        let mut checksums = checksums(self.model());
        for (number, checksum) in self.parked_checksums()? {
            checksums[number] = checksum;
        }
        for axis in [Axis::Data, Axis::ExpertData, Axis::Tensor] {
            let records = self.plan.records.iter().zip(&checksums);
            let copied = records.filter(|(record, _)| {
                let is_whole = axis == Axis::Tensor || !self.is_shard(record);
                record.held && record.replicated_over().contains(&axis) && is_whole
            });
            compare(&copied.collect::<Vec<_>>(), self.context.axis(axis), self.step)?;
        }
        for (stages, group) in self.lanes.tied() {
            let records = self.plan.records.iter().zip(&checksums);
            let tied = records.filter(|(record, _)| record.trainable && record.stages == *stages);
            if stages.contains(&self.plan.stage()) {
                compare(&tied.collect::<Vec<_>>(), group, self.step)?;
            }
        }
        Ok(())
    }
}

impl<M: Segmented> Engine<M> {
    /// Of what is sharded the replicas have no copies.
    fn is_shard(&self, record: &ParamRecord) -> bool {
        record.parked && self.plan.shards_parameters()
    }

    /// Whether other ranks than those who share its shards have a copy of a parameter.
    fn has_copies(&self, record: &ParamRecord) -> bool {
        let over_tensor =
            self.context.axis(Axis::Tensor).size() > 1 && record.replicated_over().contains(&Axis::Tensor);
        !self.is_shard(record) || over_tensor || record.is_tied_over_stages()
    }

    /// The checksums of parked parameters that have copies, whole, by the numbers of their records. Collective where ranks
    /// keep shards.
    fn parked_checksums(&self) -> Result<Vec<(usize, i64)>> {
        let mut all = Vec::new();
        let compared = |unit: &Bucket| unit.members.iter().any(|member| self.has_copies(&self.plan.records[*member]));
        let parked = self.plan.units().zip(&self.parked.0).filter(|(unit, _)| self.plan.is_parked(unit));
        for (unit, chunk) in parked.filter(|(unit, _)| compared(unit)) {
            let whole = gathered(chunk.read(&moment_device(chunk))?, unit, &self.plan, &self.context)?;
            let checksum = |(number, flat): (usize, Tensor<1>)| (number, checksum(&flat.into_data()));
            all.extend(members(unit, &self.plan.records, whole).map(checksum));
        }
        Ok(all)
    }
}

fn checksum(data: &TensorData) -> i64 {
    stable_hash(data.as_bytes()).cast_signed()
}

/// One checksum of the bits of every parameter, in the module's order.
fn checksums<M: Module>(model: &M) -> Vec<i64> {
    struct Checksums(Vec<i64>);
    impl ModuleVisitor for Checksums {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(checksum(&param.base().inner().into_data()));
        }
    }
    let mut checksums = Checksums(Vec::new());
    model.visit(&mut checksums);
    checksums.0
}

/// Compares the checksums of the members of a group. Collective.
fn compare(records: &[(&ParamRecord, &i64)], group: &ProcessGroup, step: u64) -> Result<()> {
    if group.size() == 1 || records.is_empty() {
        return Ok(());
    }
    let mine: Vec<i64> = records.iter().map(|(_, checksum)| **checksum).collect();
    let all = group.all_gather_counts(&mine)?;
    for (index, (record, _)) in records.iter().enumerate() {
        let differ = (1..group.size()).filter(|member| all[*member][index] != all[0][index]);
        let differ: Vec<String> = differ.map(|member| group.global(member).to_string()).collect();
        if !differ.is_empty() {
            return Err(Error::Parameter {
                name: record.name.clone(),
                reason: format!(
                    "its copies are not equal after step {step}: {} differs from {}; change parameters, rates and \
                     optimizers in the same way on every rank, and resume from a checkpoint before it",
                    differ.join(", "),
                    group.global(0)
                ),
            });
        }
    }
    Ok(())
}
