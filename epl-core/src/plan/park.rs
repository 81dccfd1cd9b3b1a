//! Parameters that lie in shards between their uses, and the model without them.
//!
//! ```text
//! model       [ a ][ b ][ c ]          whole, as layers know it
//!    park ▼            ▲ fill
//! model       [   ][   ][   ]          empty
//! shards      [ a b ┆ b c ]            a flat tensor for each bucket, of which every rank keeps its part
//! ```
//!
//! The model is emptied, not changed: layers never see a shard, so that it does not matter which of them look at the shape
//! of a parameter, and what is attached to one (such as LoRA) stays attached.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, Shape, Tensor};

use super::{Bucket, ParamRecord, Plan};
use crate::context::Context;
use crate::error::Result;

/// What this rank keeps of the parked parameters: a flat tensor for each of [`Plan::units`], empty where it is not parked.
#[derive(Clone, Debug)]
pub(crate) struct Parked(pub Vec<Tensor<1>>);

/// Parks parameters, one after the other.
pub(crate) struct Parking<'a> {
    records: &'a [ParamRecord],
    /// By the number of the record.
    shards: HashMap<usize, Tensor<1>>,
}

impl<'a> Parking<'a> {
    /// Nothing is parked yet.
    pub fn new(records: &'a [ParamRecord]) -> Self {
        Self { records, shards: HashMap::new() }
    }

    /// Keeps this rank's shard of a parameter and returns it empty; one that is not parked is returned as it is.
    pub fn take<const D: usize>(&mut self, number: usize, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let record = &self.records[number];
        let Some(shard) = record.shard.as_ref().filter(|_| record.parked) else { return param };
        let flat: Tensor<1> = param.base().inner().reshape([record.numel()]);
        let device = flat.device();
        self.shards.insert(number, slice(flat, shard.range.clone()));
        with(param, Tensor::empty([0; D], &device), true)
    }

    /// The chunks of all units.
    pub fn finish(mut self, plan: &Plan, device: &Device) -> Parked {
        let device = device.clone().without_autodiff();
        let chunk = |unit: &Bucket| {
            if !plan.is_parked(unit) {
                return Tensor::empty([0], (&device, unit.dtype));
            }
            let shards = unit.members.iter().filter_map(|member| self.shards.remove(member)).collect();
            chunk(unit, shards, plan.coordinate.along(unit.axis), &device)
        };
        Parked(plan.units().map(chunk).collect())
    }
}

/// The shards of the members of a bucket, put together to the chunk of `rank`, with padding.
pub(crate) fn chunk(bucket: &Bucket, mut shards: Vec<Tensor<1>>, rank: usize, device: &Device) -> Tensor<1> {
    let held: usize = shards.iter().map(|shard| shard.dims()[0]).sum();
    let padding = bucket.shards.get(rank).map_or(0, |len| len - held);
    match (&*shards, padding) {
        ([_], 0) => shards.remove(0),
        _ => {
            // Never an empty list.
            shards.push(Tensor::zeros([padding], (device, bucket.dtype)));
            Tensor::cat(shards, 0)
        }
    }
}

/// Parks the parameters of a whole model.
pub(crate) fn park<M: Module>(model: M, plan: &Plan, device: &Device) -> (M, Parked) {
    struct Park<'a>(Parking<'a>, usize);
    impl ModuleMapper for Park<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.1 += 1;
            self.0.take(self.1 - 1, param)
        }
    }
    let mut park = Park(Parking::new(&plan.records), 0);
    let model = model.map(&mut park);
    (model, park.0.finish(plan, device))
}

/// The model with values in the place of some parameters: `values` has them, flat, by the number of the record, and may ask
/// for the parameter's own. They ask for a gradient where `tracked` is true and the parameter does.
pub(crate) fn fill<M: Module>(
    model: M,
    records: &[ParamRecord],
    tracked: bool,
    values: impl FnMut(usize, &dyn Fn() -> Tensor<1>) -> Option<Tensor<1>>,
) -> M {
    struct Fill<'a, F> {
        records: core::iter::Enumerate<core::slice::Iter<'a, ParamRecord>>,
        tracked: bool,
        values: F,
    }
    impl<F: FnMut(usize, &dyn Fn() -> Tensor<1>) -> Option<Tensor<1>>> ModuleMapper for Fill<'_, F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (number, record) = self.records.next().expect("a plan has a record for every parameter");
            let own = || param.base().inner().reshape([record.numel()]);
            match (self.values)(number, &own) {
                Some(flat) => with(param, flat.reshape::<D, _>(Shape::from(record.shape())), self.tracked),
                None => param,
            }
        }
    }
    model.map(&mut Fill { records: records.iter().enumerate(), tracked, values })
}

/// The whole model again, from the shards of all ranks. Collective.
pub(crate) fn unpark<M: Module>(model: M, plan: &Plan, parked: &Parked, context: &Context) -> Result<M> {
    let mut whole: HashMap<usize, Tensor<1>> = HashMap::new();
    for (unit, chunk) in plan.units().zip(&parked.0).filter(|(unit, _)| plan.is_parked(unit)) {
        let flat = context.axis(unit.axis).all_gather_uneven(chunk.clone(), 0, &unit.shards)?;
        whole.extend(members(unit, &plan.records, flat));
    }
    Ok(fill(model, &plan.records, true, |number, _| whole.remove(&number)))
}

/// The parked parameters, divided by another plan of the same units, one unit after the other. Collective.
pub(crate) fn recut(parked: &Parked, before: &Plan, plan: &Plan, context: &Context) -> Result<Parked> {
    let units = before.units().zip(plan.units()).zip(&parked.0);
    let recut = units.map(|((before, unit), chunk)| {
        if !plan.is_parked(unit) {
            return Ok(chunk.clone());
        }
        let flat = context.axis(unit.axis).all_gather_uneven(chunk.clone(), 0, &before.shards)?;
        let mut whole: HashMap<usize, Tensor<1>> = members(before, &plan.records, flat).collect();
        let own =
            |member: &usize| Some(slice(whole.remove(member)?, plan.records[*member].shard.as_ref()?.range.clone()));
        let shards = unit.members.iter().filter_map(own).collect();
        Ok(self::chunk(unit, shards, plan.coordinate.along(unit.axis), &chunk.device()))
    });
    Ok(Parked(recut.collect::<Result<_>>()?))
}

/// A part of a flat tensor, which does not keep the whole alive.
fn slice(flat: Tensor<1>, range: Range<usize>) -> Tensor<1> {
    match range.len() == flat.dims()[0] {
        true => flat,
        false => {
            let device = flat.device();
            Tensor::from_data(flat.slice([range]).into_data(), &device)
        }
    }
}

/// The members of a bucket, whole, from its flat tensor.
pub(crate) fn members<'a>(
    bucket: &'a Bucket,
    records: &'a [ParamRecord],
    flat: Tensor<1>,
) -> impl Iterator<Item = (usize, Tensor<1>)> + 'a {
    let mut end = 0;
    bucket.members.iter().map(move |member| {
        let start = end;
        end += records[*member].numel();
        (*member, flat.clone().slice([start..end]))
    })
}

/// This rank's shards of a bucket's members, from its chunk.
pub(crate) fn own_shards<'a>(
    bucket: &'a Bucket,
    records: &'a [ParamRecord],
    chunk: &Tensor<1>,
) -> impl Iterator<Item = (usize, Tensor<1>)> + 'a {
    let (chunk, mut end) = (chunk.clone(), 0);
    bucket.members.iter().map(move |member| {
        let start = end;
        end += records[*member].shard.as_ref().map_or(0, |shard| shard.range.len());
        (*member, chunk.clone().slice([start..end]))
    })
}

/// The parameter with other values, of any shape.
fn with<const D: usize>(param: Param<Tensor<D>>, values: Tensor<D>, tracked: bool) -> Param<Tensor<D>> {
    param.map(|old| match old.is_autodiff() {
        true => Tensor::from_inner(values).set_require_grad(tracked && old.is_require_grad()),
        false => values,
    })
}
