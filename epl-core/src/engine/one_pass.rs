//! The update where the optimizer's state lies away from the device: in place, where the parameters lie there, too.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::Engine;
use super::gradients::GradientStore;
use crate::error::Result;
use crate::offload::{FlatArray, Gradients, Update};
use crate::plan::park::{Chunk, chunk};
use crate::plan::{Bucket, ParamRecord};
use crate::segment::Segmented;

impl<M: Segmented> Engine<M> {
    /// Updates this rank's part of a bucket, group by group. Collective.
    pub(super) fn update_in_one_pass(
        &mut self,
        unit: usize,
        bucket: &Bucket,
        groups: Vec<Range<usize>>,
        store: &mut GradientStore,
        update: Update,
    ) -> Result<()> {
        // In place, where what lies there is what this rank updates.
        let is_own = self.plan.shards_parameters() || bucket.shards.is_empty();
        let is_own = is_own && matches!(self.parked.0[unit], Chunk::Away(_)) && self.plan.is_parked(bucket);
        let mut copy = match is_own {
            true => None,
            false => Some(self.copy_of(unit, bucket)?),
        };
        for group in groups {
            let numbers: Vec<usize> = group.clone().collect();
            let tensors = self.gradients_of(bucket, group, store);
            let away = self.away.as_ref().map(|away| away.borrow());
            let gradients = match away.as_ref().map(|away| away.array(unit)) {
                Some(Some(array)) => Gradients::Array(array, &numbers),
                Some(None) => continue,
                None => Gradients::Tensors(&tensors),
            };
            let parameters = match (&mut copy, &mut self.parked.0[unit]) {
                (Some(copy), _) => copy,
                (None, Chunk::Away(array)) => array,
                (None, Chunk::Device(_)) => continue,
            };
            if let Some(one_pass) = &mut self.one_pass {
                one_pass.optimizer.step(parameters, gradients, &mut one_pass.states[unit], update)?;
            }
        }
        let Some(copy) = copy else { return Ok(()) };
        let device = Device::flex();
        let own = copy.read(0..copy.len(), &device)?;
        let own = chunk(bucket, vec![own], self.sent_len(bucket), &device);
        self.put(unit, bucket, own)
    }

    /// This rank's parameters of a bucket, in host memory.
    fn copy_of(&self, unit: usize, bucket: &Bucket) -> Result<FlatArray> {
        let values = self.own_values(unit, bucket, &Device::flex())?;
        let mut copy = self.stores.host().zeros(self.plan.own_len(bucket), bucket.dtype)?;
        for ((_, range), (_, own)) in self.plan.own_ranges(bucket).zip(values) {
            copy.write(range.start, &own)?;
        }
        Ok(copy)
    }

    /// The gradients of some members of a bucket that lie on the device, with the members' places.
    fn gradients_of(&self, bucket: &Bucket, group: Range<usize>, store: &mut GradientStore) -> Vec<(usize, Tensor<1>)> {
        let records = || bucket.members[group.clone()].iter().map(|member| &self.plan.records[*member]);
        let mut own = store.take_own(records());
        let gradient = |(place, record): (usize, &ParamRecord)| Some((place, own.remove(record.id)?));
        group.clone().zip(records()).filter_map(gradient).collect()
    }
}
