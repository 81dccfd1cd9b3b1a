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

use burn::module::Param;
use burn::tensor::{Device, Shape, Tensor};

use super::gradients::GradientStore;
use super::state::{ModelState, Setup};
use crate::error::Result;
use crate::memory::Tier;
use crate::model::segment::Model;
use crate::offload::Update;
use crate::optim::PerParameter;
use crate::params::walk::{self, At, Change, Visit};
use crate::params::{Bucket, ParamTable, replaced};
use crate::plan::Plan;
use crate::simulate::UPDATE;

impl<M: Model> ModelState<M> {
    /// Updates the parameters with the reduced gradients, which are freed as they are applied. Collective.
    pub fn update(&mut self, setup: Setup<'_>, mut store: GradientStore, update: Update) -> Result<()> {
        let _span = setup.context.span(|| format!("{UPDATE}{}", self.steps + 1));
        self.update_in_model(setup, &mut store, update);
        let mut units = 0..setup.plan.params.trained().count();
        units.try_for_each(|unit| self.update_unit(setup, unit, &mut store, update))?;
        let steps = self.steps + 1;
        self.params.move_averages(&setup.plan.params, |decay| decay.after(steps))
    }

    /// Updates the parameters that the optimizer is given one by one, in the model.
    fn update_in_model(&mut self, setup: Setup<'_>, store: &mut GradientStore, update: Update) {
        let (plan, table) = (setup.plan, &setup.plan.params);
        let has_gradient = |number: &usize| store.get(table.records[*number].id).is_some();
        let numbers: Vec<usize> = table.updated_in_model().into_iter().filter(has_gradient).collect();
        let elements: Vec<usize> = numbers.iter().map(|number| table.records[*number].numel()).collect();
        let span = || setup.context.span(|| format!("{UPDATE}in the model"));
        let _span = (!numbers.is_empty()).then(span);
        for group in groups(plan, &elements, 0) {
            let mut whole =
                UpdateWhole { optimizer: &mut self.optimizer, numbers: &numbers[group], gradients: store, update };
            self.params.change(|model| {
                let Ok(model) = walk::change(model, &table.records, &mut whole);
                (model, ())
            });
        }
    }

    /// Updates this rank's part of a bucket, if the optimizer is given flat parts of it.
    fn update_unit(
        &mut self,
        setup: Setup<'_>,
        number: usize,
        store: &mut GradientStore,
        update: Update,
    ) -> Result<()> {
        let table = &setup.plan.params;
        let unit = table.unit(number);
        let Some((tier, is_owned)) = unit.residency.update.flat() else { return Ok(()) };
        let _span = setup.context.span(|| format!("{UPDATE}unit {number}"));
        let groups = groups_of(setup.plan, number);
        if self.one_pass.is_some() {
            return self.update_in_one_pass(setup, number, groups, store, update);
        }
        let device = update_device(setup.device, tier);
        if let Some(away) = &self.away {
            away.borrow().read(table, number, &device, store)?;
        }
        let mut updated = self.params.own(number, table, &device)?;
        for group in groups {
            match is_owned {
                false => self.update_shards(table, &mut updated[group], store, update),
                true => self.update_owned(table, &mut updated[group], store, update),
            }
        }
        let own = updated.into_iter().map(|(_, own)| own).collect();
        self.put(setup, number, unit.join(own, unit.sent, &device))
    }

    /// Puts this rank's new part of a bucket where its parameters lie. Collective.
    pub(super) fn put(&mut self, setup: Setup<'_>, number: usize, own: Tensor<1>) -> Result<()> {
        let Setup { plan, communicators, device, .. } = setup;
        let device = device.clone().without_autodiff();
        self.params.put(number, own, &plan.params, |axis| communicators.gathers(axis), &device)
    }

    /// An element-wise update of flat shards.
    fn update_shards(
        &mut self,
        table: &ParamTable,
        values: &mut [(usize, Tensor<1>)],
        store: &mut GradientStore,
        update: Update,
    ) {
        for (number, shard) in values {
            let record = &table.records[*number];
            if let Some(gradient) = store.take_own(record).filter(|_| shard.dims()[0] > 0) {
                // Not a clone: it is updated in place.
                let old = std::mem::replace(shard, Tensor::empty([0], &shard.device()));
                *shard = self.optimizer.step(record.id, update, old, gradient);
            }
        }
    }

    /// An update of whole parameters that this rank owns; of the others it has nothing.
    fn update_owned(
        &mut self,
        table: &ParamTable,
        values: &mut [(usize, Tensor<1>)],
        store: &mut GradientStore,
        update: Update,
    ) {
        let owned = values.iter_mut().filter(|(_, shard)| shard.dims()[0] > 0);
        let owned: HashMap<usize, &mut Tensor<1>> = owned.map(|(number, shard)| (*number, shard)).collect();
        let mut owned = UpdateOwned { owned, optimizer: &mut self.optimizer, gradients: store, update };
        let Ok(()) = walk::visit(self.params.model(), &table.records, &mut owned);
    }
}

/// Where Burn's optimizer updates what has its state there.
pub(super) fn update_device(device: &Device, state: Tier) -> Device {
    match state {
        Tier::Device => device.clone().without_autodiff(),
        Tier::Host | Tier::Disk => Device::flex(),
    }
}

/// The groups of `optimizer.num_apply_group` among the members of a bucket.
fn groups_of(plan: &Plan, unit: usize) -> Vec<Range<usize>> {
    let elements: Vec<usize> = plan.params.unit(unit).slots.iter().map(|slot| slot.own.len()).collect();
    let before = plan.params.units().take(unit).map(Bucket::own_len).sum();
    groups(plan, &elements, before)
}

/// Cuts a list of parameters, of so many elements each, into the groups of `optimizer.num_apply_group`: those of equal
/// parts of all elements that this rank updates. `before` are the elements that come before.
fn groups(plan: &Plan, elements: &[usize], before: usize) -> Vec<Range<usize>> {
    let total: usize = plan.params.trained().map(Bucket::own_len).sum();
    // Wide: there may be more groups asked for than elements.
    let part =
        |end: usize| end.saturating_sub(1) as u128 * plan.settings.num_apply_group as u128 / total.max(1) as u128;
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

/// Updates the parameters of a model with these numbers, in order, that have gradients.
struct UpdateWhole<'a> {
    optimizer: &'a mut PerParameter,
    numbers: &'a [usize],
    gradients: &'a mut GradientStore,
    update: Update,
}

impl Change for UpdateWhole<'_> {
    type Error = Infallible;

    fn float<const D: usize>(&mut self, at: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>, Infallible> {
        let (id, update) = (param.id, self.update);
        if self.numbers.binary_search(&at.number).is_err() {
            return Ok(param);
        }
        let Some(gradient) = self.gradients.take_own(at.record) else { return Ok(param) };
        Ok(replaced(param, |value| {
            let gradient = gradient.reshape(value.shape());
            self.optimizer.step(id, update, value, gradient)
        }))
    }
}

/// Updates whole parameters that lie flat beside the model, each with its own dims.
struct UpdateOwned<'a> {
    owned: HashMap<usize, &'a mut Tensor<1>>,
    optimizer: &'a mut PerParameter,
    gradients: &'a mut GradientStore,
    update: Update,
}

impl Visit for UpdateOwned<'_> {
    type Error = Infallible;

    fn float<const D: usize>(&mut self, at: At<'_>, param: &Param<Tensor<D>>) -> Result<(), Infallible> {
        let record = at.record;
        let Some(flat) = self.owned.remove(&at.number) else { return Ok(()) };
        if let Some(gradient) = self.gradients.take_own(record) {
            let old = std::mem::replace(flat, Tensor::empty([0], &flat.device()));
            let shaped = |values: Tensor<1>| values.reshape::<D, _>(Shape::from(record.shape()));
            let new = self.optimizer.step(param.id, self.update, shaped(old), shaped(gradient));
            *flat = new.reshape([record.numel()]);
        }
        Ok(())
    }
}
