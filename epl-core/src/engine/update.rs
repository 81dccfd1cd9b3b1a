//! The update: Burn's optimizer on what this rank keeps the state of, in groups; what it updated goes to the replicas.
//!
//! ```text
//!                    shards of this rank
//! gradients    [ a ┆ b b ┆ c ]
//! parameters   [ a ┆ b b ┆ c ]  ──▶ Burn's optimizer ──▶ [ a ┆ b b ┆ c ] ──▶ all replicas, or parked
//! ```
//!
//! An element-wise optimizer gets flat shards. One that looks at whole tensors gets the parameters that this rank owns, in
//! their shapes, and none of the others.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{Device, Shape, Tensor};

use super::Engine;
use super::gradients::GradientStore;
use crate::cluster::Axis;
use crate::error::Result;
use crate::memory::Tier;
use crate::offload::Update;
use crate::optim::PerParameter;
use crate::params::walk::{self, At, Change, Visit};
use crate::params::{ParamRecord, replaced};
use crate::plan::Bucket;
use crate::plan::park::{chunk, fill, members, parked_parts};
use crate::segment::Segmented;

impl<M: Segmented> Engine<M> {
    /// Updates the parameters with the reduced gradients, which are freed as they are applied. Collective.
    pub(super) fn update(&mut self, mut store: GradientStore, update: Update) -> Result<()> {
        let _span = self.context.span(|| format!("update {}", self.next_step()));
        if self.one_pass.is_none() {
            store.scale_by(update.factor);
        }
        if !self.plan.offloads() {
            self.update_whole(&mut store, update.rate);
        }
        (0..self.plan.trained().count()).try_for_each(|unit| self.update_unit(unit, &mut store, update))
    }

    /// Updates the parameters of which every rank that holds them updates all.
    fn update_whole(&mut self, store: &mut GradientStore, rate: f64) {
        let records = &self.plan.records;
        let is_whole = |number: &usize| records[*number].shard.is_none() && store.get(records[*number].id).is_some();
        let whole: Vec<usize> = (0..records.len()).filter(is_whole).collect();
        let elements: Vec<usize> = whole.iter().map(|number| records[*number].numel()).collect();
        for group in self.groups(&elements, 0) {
            let model = self.model.take().expect("the model is only away during an update");
            let gradients = store.take_own(whole[group].iter().map(|number| &self.plan.records[*number]));
            let mut update = UpdateWhole { optimizer: &mut self.optimizer, gradients, rate };
            let Ok(model) = walk::change(model, &self.plan.records, &mut update);
            self.model = Some(model);
        }
    }

    /// Updates this rank's part of a bucket, if it is cut or lies away from the device.
    fn update_unit(&mut self, unit: usize, store: &mut GradientStore, update: Update) -> Result<()> {
        let bucket = self.plan.unit(unit).clone();
        if bucket.shards.is_empty() && !self.plan.offloads() {
            return Ok(());
        }
        let groups = self.groups_of(unit, &bucket);
        if self.one_pass.is_some() {
            return self.update_in_one_pass(unit, &bucket, groups, store, update);
        }
        let device = self.update_device();
        if let Some(away) = &self.away {
            away.borrow().read(&self.plan, unit, update.factor, &device, store)?;
        }
        let mut updated = self.own_values(unit, &bucket, &device)?;
        for group in groups {
            match self.element_wise {
                true => self.update_shards(&mut updated[group], store, update.rate),
                false => self.update_owned(&mut updated[group], store, update.rate),
            }
        }
        let own = updated.into_iter().map(|(_, own)| own).collect();
        self.put(unit, &bucket, chunk(&bucket, own, self.sent_len(&bucket), &device))
    }

    /// Where Burn's optimizer updates.
    pub(super) fn update_device(&self) -> Device {
        match self.plan.tiers.state {
            Tier::Device => self.device.clone().without_autodiff(),
            Tier::Host | Tier::Disk => Device::flex(),
        }
    }

    /// The elements of a bucket that this rank sends to the others, with padding; all, where none are sent.
    pub(super) fn sent_len(&self, bucket: &Bucket) -> usize {
        bucket.shards.get(self.rank_along(bucket.axis)).copied().unwrap_or_else(|| self.plan.own_len(bucket))
    }

    /// Puts this rank's new part of a bucket where its parameters lie, with those of the replicas, if the whole lies there.
    /// Collective.
    pub(super) fn put(&mut self, unit: usize, bucket: &Bucket, own: Tensor<1>) -> Result<()> {
        let is_parked = self.plan.is_parked(bucket);
        if is_parked && self.plan.shards_parameters() {
            return self.parked.0[unit].write(0, own);
        }
        // One bucket after the other: no other is whole beside the parameters.
        let flat = match bucket.shards.is_empty() {
            true => own,
            false => self.lanes.gathers(bucket.axis).all_gather_uneven(own, 0, &bucket.shards)?,
        };
        if is_parked {
            let kept = flat.slice([0..self.plan.kept_len(bucket)]);
            return self.parked.0[unit].write(0, kept);
        }
        let device = self.device.clone().without_autodiff();
        let flat = flat.to_device(&device);
        let mut values: HashMap<usize, Tensor<1>> = members(bucket, &self.plan.records, flat).collect();
        let model = self.model.take().expect("the model is only away during an update");
        self.model = Some(fill(model, &self.plan.records, true, |number, _| values.remove(&number)));
        Ok(())
    }

    /// This rank's parts of a bucket's members, with the numbers of their records.
    pub(super) fn own_values(&self, unit: usize, bucket: &Bucket, device: &Device) -> Result<Vec<(usize, Tensor<1>)>> {
        if self.plan.is_parked(bucket) {
            return parked_parts(bucket, &self.plan, &self.parked.0[unit], device);
        }
        let mut whole = read(self.model(), &self.plan.records, &bucket.members);
        let own = |number: &usize| {
            let part = whole.remove(number)?.slice([self.plan.own_range(*number)]);
            Some((*number, part.to_device(device)))
        };
        Ok(bucket.members.iter().filter_map(own).collect())
    }

    /// The groups of `optimizer.num_apply_group` among the members of a bucket.
    fn groups_of(&self, unit: usize, bucket: &Bucket) -> Vec<Range<usize>> {
        let elements: Vec<usize> = bucket.members.iter().map(|member| self.plan.own_range(*member).len()).collect();
        let before = self.plan.units().take(unit).map(|unit| self.plan.own_len(unit)).sum();
        self.groups(&elements, before)
    }

    /// An element-wise update of flat shards.
    fn update_shards(&mut self, values: &mut [(usize, Tensor<1>)], store: &mut GradientStore, rate: f64) {
        let mut own = store.take_own(values.iter().map(|(number, _)| &self.plan.records[*number]));
        for (number, shard) in values.iter_mut().filter(|(_, shard)| shard.dims()[0] > 0) {
            let id = self.plan.records[*number].id;
            if let Some(gradient) = own.remove(id) {
                // Not a clone: it is updated in place.
                let old = std::mem::replace(shard, Tensor::empty([0], &shard.device()));
                *shard = self.optimizer.step(id, rate, old, gradient);
            }
        }
    }

    /// An update of whole parameters that this rank owns; of the others it has nothing.
    fn update_owned(&mut self, values: &mut [(usize, Tensor<1>)], store: &mut GradientStore, rate: f64) {
        let owned = values.iter_mut().filter(|(_, shard)| shard.dims()[0] > 0);
        let owned: HashMap<usize, &mut Tensor<1>> = owned.map(|(number, shard)| (*number, shard)).collect();
        let gradients = store.take_own(owned.keys().map(|number| &self.plan.records[*number]));
        let model = self.model.as_ref().expect("the model is only away during an update");
        let mut update = UpdateOwned { owned, optimizer: &mut self.optimizer, gradients, rate };
        let Ok(()) = walk::visit(model, &self.plan.records, &mut update);
    }

    /// Cuts a list of parameters, of so many elements each, into the groups of `optimizer.num_apply_group`: those of equal
    /// parts of all elements that this rank updates. `before` are the elements that come before.
    fn groups(&self, elements: &[usize], before: usize) -> Vec<Range<usize>> {
        let records = self.plan.records.iter().enumerate().filter(|(_, record)| record.trainable && record.held);
        let total: usize = records.map(|(number, _)| self.plan.own_range(number).len()).sum();
        // Wide: there may be more groups asked for than elements.
        let part = |end: usize| {
            end.saturating_sub(1) as u128 * self.plan.settings.num_apply_group as u128 / total.max(1) as u128
        };
        let ends = elements.iter().scan(before, |end, len| {
            *end += len;
            Some(part(*end))
        });
        let parts: Vec<u128> = ends.collect();
        let mut groups: Vec<Range<usize>> = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            match groups.last_mut().filter(|group| parts[group.start] == *part) {
                Some(group) => group.end = index + 1,
                None => groups.push(index..index + 1),
            }
        }
        groups
    }

    fn rank_along(&self, axis: Axis) -> usize {
        self.plan.coordinate.along(axis)
    }
}

/// Updates the parameters of a model that have gradients.
struct UpdateWhole<'a> {
    optimizer: &'a mut PerParameter,
    gradients: GradientStore,
    rate: f64,
}

impl Change for UpdateWhole<'_> {
    type Error = Infallible;

    fn float<const D: usize>(&mut self, _: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>, Infallible> {
        let (id, rate) = (param.id, self.rate);
        let Some(gradient) = self.gradients.remove(id) else { return Ok(param) };
        Ok(replaced(param, |value| {
            let gradient = gradient.reshape(value.shape());
            self.optimizer.step(id, rate, value, gradient)
        }))
    }
}

/// Updates whole parameters that lie flat beside the model, each with its own dims.
struct UpdateOwned<'a> {
    owned: HashMap<usize, &'a mut Tensor<1>>,
    optimizer: &'a mut PerParameter,
    gradients: GradientStore,
    rate: f64,
}

impl Visit for UpdateOwned<'_> {
    type Error = Infallible;

    fn float<const D: usize>(&mut self, at: At<'_>, param: &Param<Tensor<D>>) -> Result<(), Infallible> {
        let record = at.record;
        if let (Some(flat), Some(gradient)) = (self.owned.remove(&at.number), self.gradients.remove(param.id)) {
            let old = std::mem::replace(flat, Tensor::empty([0], &flat.device()));
            let shaped = |values: Tensor<1>| values.reshape::<D, _>(Shape::from(record.shape()));
            *flat = self.optimizer.step(param.id, self.rate, shaped(old), shaped(gradient)).reshape([record.numel()]);
        }
        Ok(())
    }
}

/// Some parameters of a model, flat, by the numbers of their records.
fn read<M: Module>(model: &M, records: &[ParamRecord], numbers: &[usize]) -> HashMap<usize, Tensor<1>> {
    struct Read<'a> {
        wanted: &'a [usize],
        found: HashMap<usize, Tensor<1>>,
    }
    impl Visit for Read<'_> {
        type Error = Infallible;

        fn float<const D: usize>(&mut self, at: At<'_>, param: &Param<Tensor<D>>) -> Result<(), Infallible> {
            if self.wanted.contains(&at.number) {
                let values = param.base().inner();
                let numel = values.shape().num_elements();
                self.found.insert(at.number, values.reshape([numel]));
            }
            Ok(())
        }
    }
    let mut read = Read { wanted: numbers, found: HashMap::new() };
    let Ok(()) = walk::visit(model, records, &mut read);
    read.found
}
