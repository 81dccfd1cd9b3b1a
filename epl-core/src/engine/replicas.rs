//! Whether replicas hold the same bits.
//!
//! Parameters that are replicated beside divided ones (norms, routers, biases after a row split) stay equal because
//! equal gradients update equal values in the same way. Nothing would fail if they did not: each rank would go on
//! with a model of its own. So it can be checked: one checksum a parameter is gathered over every axis along which
//! copies of it exist.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use epl_comm::ProcessGroup;

use super::rank::Engine;
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::offload::is_host;
use crate::params::ParamRecord;
use crate::stable_hash::stable_hash;
use crate::topology::cluster::Axis;

impl<M: Model> Engine<M> {
    /// Checks that every parameter has the same bits on all ranks that hold a copy of it. What lies in shards over the replicas
    /// (ZeRO v3) is gathered for that, one bucket after the other, and compared with what other slices and stages have of it.
    /// Collective.
    ///
    /// # Errors
    ///
    /// When one does not: its name, and the ranks that differ.
    pub fn check_replicas(&self) -> Result<()> {
        let mut checksums = checksums(self.model());
        // Of these the replicas have no copies.
        let table = &self.plan.params;
        let shards = table.sharded();
        for (number, checksum) in self.flat_checksums(&shards)? {
            checksums[number] = checksum;
        }
        for axis in [Axis::Data, Axis::ExpertData, Axis::Tensor] {
            let records = table.records.iter().zip(&checksums).enumerate();
            let copied = records.filter(|(number, (record, _))| {
                let is_whole = axis == Axis::Tensor || !shards.contains(number);
                record.held && record.replicated_over().contains(&axis) && is_whole
            });
            let copied: Vec<_> = copied.map(|(_, copied)| copied).collect();
            compare(&copied, self.context.axis(axis), self.state.steps, remedy(axis, is_host(&self.device)))?;
        }
        for (stages, group) in self.communicators.tied() {
            // Their gradients are summed over these.
            let remedy = remedy(Axis::Pipeline, is_host(&self.device));
            let records = table.records.iter().zip(&checksums);
            let tied = records.filter(|(record, _)| record.trainable && record.stages == *stages);
            if stages.contains(&self.plan.stage()) {
                compare(&tied.collect::<Vec<_>>(), group, self.state.steps, remedy)?;
            }
        }
        Ok(())
    }

    /// The checksums of parameters that lie beside the model and have copies, whole, by the numbers of their records.
    /// Collective where ranks keep shards.
    fn flat_checksums(&self, shards: &HashSet<usize>) -> Result<Vec<(usize, i64)>> {
        let (table, mut all) = (&self.plan.params, Vec::new());
        // On other ranks than those who share its shards.
        let has_copies = |number: &usize| {
            let record = &table.records[*number];
            let over_tensor =
                self.context.axis(Axis::Tensor).size() > 1 && record.replicated_over().contains(&Axis::Tensor);
            !shards.contains(number) || over_tensor || record.is_tied_over_stages()
        };
        for (number, _) in table.gathered().filter(|(_, unit)| unit.members.iter().any(has_copies)) {
            let whole = self.state.params.whole_unit(number, table, &self.context)?;
            all.extend(whole.into_iter().map(|(record, flat)| (record, checksum(&flat.into_data()))));
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

/// What to do about copies that differ over an axis. Over the tensor axis each rank computes the gradient of its copy itself, and
/// nothing brings them together: on devices that measure which kernel is the fastest, the order of a sum may differ.
fn remedy(axis: Axis, is_on_host: bool) -> &'static str {
    match axis == Axis::Tensor && !is_on_host {
        true => {
            "change parameters, rates and optimizers in the same way on every rank; where that is so, each rank of the tensor \
             group computes the gradient of its copy with kernels that its device has chosen (autotune), and the last bits of \
             sums may differ: resume from a checkpoint, of which all ranks read the same copy"
        }
        false => {
            "change parameters, rates and optimizers in the same way on every rank, and resume from a checkpoint before it"
        }
    }
}

/// Compares the checksums of the members of a group. Collective.
fn compare(records: &[(&ParamRecord, &i64)], group: &ProcessGroup, step: u64, remedy: &str) -> Result<()> {
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
                    "its copies are not equal after step {step}: {} differs from {}; {remedy}",
                    differ.join(", "),
                    group.global(0)
                ),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_named_where_devices_choose_them_and_gradients_are_not_reduced() {
        for axis in [Axis::Data, Axis::ExpertData, Axis::Tensor, Axis::Pipeline] {
            assert!(!remedy(axis, true).contains("kernels"), "{axis:?}");
            assert_eq!(remedy(axis, false).contains("kernels"), axis == Axis::Tensor, "{axis:?}");
        }
    }
}
