//! The update where the optimizer's state lies away from the device: in place, where the parameters lie there, too.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::gradients::GradientStore;
use super::state::{ModelState, Setup};
use crate::error::Result;
use crate::model::segment::Model;
use crate::offload::{FlatArray, Gradients, Update};
use crate::params::{Bucket, ParamTable};

impl<M: Model> ModelState<M> {
    /// Updates this rank's part of a bucket, group by group. Collective.
    pub(super) fn update_in_one_pass(
        &mut self,
        setup: Setup<'_>,
        unit: usize,
        groups: Vec<Range<usize>>,
        store: &mut GradientStore,
        update: Update,
    ) -> Result<()> {
        let table = &setup.plan.params;
        let bucket = table.unit(unit);
        // In place, where what lies there is what this rank updates.
        let mut copy = match self.params.in_place(unit, bucket) {
            Some(_) => None,
            None => Some(self.copy_of(unit, table)?),
        };
        for group in groups {
            let tensors = gradients_of(table, bucket, group.clone(), store);
            let away = self.away.as_ref().map(|away| away.borrow());
            let has = |place: &usize| away.as_ref().is_none_or(|away| away.has(bucket.members[*place]));
            let numbers: Vec<usize> = group.filter(has).collect();
            let gradients = match away.as_ref().map(|away| away.array(unit)) {
                Some(Some(array)) => Gradients::Array(array, &numbers),
                Some(None) => continue,
                None => Gradients::Tensors(&tensors),
            };
            let Some(parameters) = copy.as_mut().or_else(|| self.params.in_place(unit, bucket)) else { continue };
            if let Some(one_pass) = &mut self.one_pass {
                one_pass.optimizer.step(parameters, gradients, &mut one_pass.states[unit], update)?;
            }
        }
        let Some(copy) = copy else { return Ok(()) };
        let device = Device::flex();
        let own = copy.read(0..copy.len(), &device)?;
        self.put(setup, unit, bucket.join(vec![own], bucket.sent, &device))
    }

    /// This rank's parameters of a bucket, in host memory.
    fn copy_of(&self, unit: usize, table: &ParamTable) -> Result<FlatArray> {
        let bucket = table.unit(unit);
        let values = self.params.own(unit, table, &Device::flex())?;
        let mut copy = self.params.storage().host().zeros(bucket.own_len(), bucket.dtype)?;
        for (slot, (_, own)) in bucket.slots.iter().zip(values) {
            copy.write(slot.own_at.start, &own)?;
        }
        Ok(copy)
    }
}

/// The gradients of some members of a bucket that lie on the device, with the members' places.
fn gradients_of(
    table: &ParamTable,
    bucket: &Bucket,
    group: Range<usize>,
    store: &mut GradientStore,
) -> Vec<(usize, Tensor<1>)> {
    let gradient = |place: usize| Some((place, store.take_own(&table.records[bucket.members[place]])?));
    group.filter_map(gradient).collect()
}
