//! Gradients and optimizer state that lie away from the device, and the update there.
//!
//! ```text
//!                 this rank's part of each bucket
//! gradients    [ a ┆ b b ┆ c ]   sums of the micro-batches so far
//! state        [ a ┆ b b ┆ c ]   of an optimizer that updates in one pass
//! parameters   [ a ┆ b b ┆ c ]
//! ```

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::gradients::GradientStore;
use super::meter::Meter;
use crate::error::{Error, Result};
use crate::memory::Tier;
use crate::offload::{FlatArray, HostOptimizer, HostState, OnePass};
use crate::optim::ResolvedOptimizer;
use crate::params::storage::StateStorage;
use crate::params::{Bucket, ParamTable};
use crate::plan::Plan;

/// Reduced gradients, by the number of the unit.
#[derive(Debug)]
pub(crate) struct AwayGradients {
    arrays: Vec<FlatArray>,
    /// Whether an array holds gradients of this step.
    filled: Vec<bool>,
    /// The records whose gradients are none, but zeros in their place.
    left_out: BTreeSet<usize>,
    /// How many steps have begun.
    number: u64,
}

impl AwayGradients {
    /// Where gradients lie away from the device: room for them.
    pub fn new(plan: &Plan, storage: &StateStorage) -> Result<Option<Self>> {
        let array = |unit: &Bucket| Some(storage.of_gradients(unit)?.zeros(unit.own_len(), unit.dtype));
        // All units are alike in this.
        let arrays: Option<Result<Vec<FlatArray>>> = plan.params.trained().map(array).collect();
        let arrays = arrays.transpose()?.unwrap_or_default();
        if arrays.is_empty() {
            return Ok(None);
        }
        let filled = vec![false; arrays.len()];
        Ok(Some(Self { arrays, filled, left_out: BTreeSet::new(), number: 0 }))
    }

    /// Forgets the gradients of the step before.
    pub fn begin(&mut self) {
        self.filled.fill(false);
        self.left_out.clear();
        self.number += 1;
    }

    /// Which step's gradients these are.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Nothing is updated by the gradients of these records.
    pub fn leave_out(&mut self, records: BTreeSet<usize>) {
        self.left_out = records;
    }

    /// Whether a record has a gradient, if its unit has any.
    pub fn has(&self, record: usize) -> bool {
        !self.left_out.contains(&record)
    }

    /// Adds this rank's part of a bucket.
    pub fn add(&mut self, unit: usize, own: &Tensor<1>) -> Result<()> {
        match core::mem::replace(&mut self.filled[unit], true) {
            true => self.arrays[unit].add(0, own),
            false => self.arrays[unit].write(0, own),
        }
    }

    /// The units that have gradients here.
    fn filled<'a>(&'a self, table: &'a ParamTable) -> impl Iterator<Item = (&'a Bucket, &'a FlatArray)> {
        table.trained().zip(&self.arrays).zip(&self.filled).filter(|(_, filled)| **filled).map(|(unit, _)| unit)
    }

    /// The squares of those elements that this rank counts.
    pub fn squared(&self, table: &ParamTable) -> Result<f64> {
        let mut sum = 0.0;
        for (unit, array) in self.filled(table) {
            for slot in unit.slots.iter().filter(|slot| table.records[slot.record].counted) {
                sum += array.sum_of_squares(slot.own_at.clone())?;
            }
        }
        Ok(sum)
    }

    /// The numbers of the records whose gradients here are not finite.
    pub fn not_finite(&self, table: &ParamTable) -> Result<Vec<usize>> {
        let mut found = Vec::new();
        for (unit, array) in self.filled(table) {
            for slot in &unit.slots {
                if !array.sum_of_squares(slot.own_at.clone())?.is_finite() {
                    found.push(slot.record);
                }
            }
        }
        Ok(found)
    }

    /// The gradients of a unit on a device.
    pub fn read(&self, table: &ParamTable, unit: usize, device: &Device, store: &mut GradientStore) -> Result<()> {
        let slots = table.unit(unit).slots.iter().filter(|slot| self.filled[unit] && self.has(slot.record));
        for slot in slots {
            let values = self.arrays[unit].read(slot.own_at.clone(), device)?;
            store.insert(table.records[slot.record].id, values);
        }
        Ok(())
    }

    /// All of them on a device.
    pub fn to_store(&self, table: &ParamTable, device: &Device) -> Result<GradientStore> {
        let mut store = GradientStore::new(&Meter::default());
        (0..self.arrays.len()).try_for_each(|unit| self.read(table, unit, device, &mut store))?;
        Ok(store)
    }

    /// Where they lie, whether there are any or not.
    pub fn arrays(&self) -> impl Iterator<Item = &FlatArray> {
        self.arrays.iter()
    }

    /// Those of a unit, if it has any.
    pub fn array(&self, unit: usize) -> Option<&FlatArray> {
        self.filled[unit].then(|| &self.arrays[unit])
    }
}

/// An optimizer that updates in one pass over memory, with its state by the number of the unit.
#[derive(Debug)]
pub(crate) struct OnePassUpdate {
    pub optimizer: HostOptimizer,
    pub states: Vec<HostState>,
    /// Which of them has a parameter, by the number of its record, and at which place.
    places: HashMap<usize, (usize, usize)>,
}

impl OnePassUpdate {
    /// Where the optimizer's state lies away from the device, and it can be updated there in one pass.
    ///
    /// # Errors
    ///
    /// When it cannot, and its state is to lie in files.
    pub fn new(plan: &Plan, storage: &StateStorage, resolved: &ResolvedOptimizer) -> Result<Option<Self>> {
        let Some(storage) = storage.at(plan.tiers.state) else { return Ok(None) };
        let mut variants = Vec::new();
        for variant in &resolved.variants {
            match &variant.one_pass {
                OnePass::Yes(optimizer) => variants.push(*optimizer),
                OnePass::No(_) if plan.tiers.state == Tier::Host => return Ok(None),
                OnePass::No(reason) => {
                    return Err(Error::invalid(format!(
                        "the optimizer's state is to lie in files, and {reason}; set offload.optimizer_state = host"
                    )));
                }
            }
        }
        // The first one is there always.
        let Some(&optimizer) = variants.first() else { return Ok(None) };
        let state = |unit: &Bucket| {
            let updates = unit.members.iter().map(|member| resolved.update(*member));
            let groups = updates.map(|update| (variants[update.variant], update.rate_factor)).collect();
            optimizer.state_of_groups(storage, unit.dtype, pieces(unit), groups)
        };
        let states = plan.params.trained().map(state).collect::<Result<_>>()?;
        let members = plan.params.trained().enumerate().flat_map(|(unit, bucket)| {
            bucket.members.iter().enumerate().map(move |(piece, member)| (*member, (unit, piece)))
        });
        Ok(Some(Self { optimizer, states, places: members.collect() }))
    }

    /// Gives parameters rates of their own, by the numbers of their records; or none.
    pub fn set_rates(&mut self, rates: Option<&[f64]>) {
        self.states.iter_mut().for_each(HostState::clear_rates);
        let Some(rates) = rates else { return };
        for (number, (unit, piece)) in &self.places {
            self.states[*unit].set_rate(*piece, rates[*number]);
        }
    }

    /// The state that has a parameter, and its place there.
    pub fn state(&self, number: usize) -> Option<(&HostState, usize)> {
        self.places.get(&number).map(|(unit, piece)| (&self.states[*unit], *piece))
    }
}

fn pieces(unit: &Bucket) -> Vec<Range<usize>> {
    unit.slots.iter().map(|slot| slot.own_at.clone()).collect()
}
