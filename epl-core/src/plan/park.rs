//! Parameters that lie elsewhere between their uses, and the model without them.
//!
//! ```text
//! model       [ a ][ b ][ c ]          whole, as layers know it
//!    park ▼            ▲ fill
//! model       [   ][   ][   ]          empty
//! chunks      [ a b ┆ b c ]            a flat array for each bucket, away from the device, or of which every rank keeps
//!                                      its shard
//! ```
//!
//! The model is emptied, not changed: layers never see a shard, so that it does not matter which of them look at the shape
//! of a parameter, and what is attached to one (such as LoRA) stays attached.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{Device, Shape, Tensor};

use super::stores::Stores;
use super::{Bucket, Plan};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::offload::FlatArray;
use crate::params::walk::{self, At, Change};
use crate::params::{ParamRecord, with};

/// What this rank keeps of the parked parameters: a flat array for each of [`Plan::units`], empty where it is not parked.
#[derive(Debug)]
pub(crate) struct Parked(pub Vec<Chunk>);

/// A flat array, on the device or away from it.
#[derive(Debug)]
pub(crate) enum Chunk {
    Device(Tensor<1>),
    Away(FlatArray),
}

impl Chunk {
    /// Its values, on a device.
    pub fn read(&self, device: &Device) -> Result<Tensor<1>> {
        match self {
            Self::Device(values) => Ok(values.clone()),
            Self::Away(array) => array.read(0..array.len(), device),
        }
    }

    /// Replaces its values from `start` on: all of them, where it lies on the device.
    pub fn write(&mut self, start: usize, values: Tensor<1>) -> Result<()> {
        match self {
            Self::Device(own) => {
                *own = values.to_device(&own.device());
                Ok(())
            }
            Self::Away(array) => array.write(start, &values),
        }
    }

    /// Its bytes on the device.
    pub fn device_bytes(&self) -> u64 {
        match self {
            Self::Device(values) => (values.shape().num_elements() * values.dtype().size()) as u64,
            Self::Away(_) => 0,
        }
    }
}

/// Parks parameters, one after the other.
pub(crate) struct Parking<'a> {
    plan: &'a Plan,
    device: Device,
    /// By the number of the record, where they lie on the device.
    kept: HashMap<usize, Tensor<1>>,
    /// Arrays away from it, by the number of the unit.
    away: Vec<Option<FlatArray>>,
    /// [`Plan::parked_places`].
    places: HashMap<usize, (usize, Range<usize>)>,
}

impl<'a> Parking<'a> {
    /// Nothing is parked yet.
    ///
    /// # Errors
    ///
    /// When there is no room for the arrays away from the device.
    pub fn new(plan: &'a Plan, stores: &Stores, device: &Device) -> Result<Self> {
        let storage = stores.at(plan.tiers.parameters);
        let array = |unit: &Bucket| {
            let len = if plan.is_parked(unit) { plan.kept_len(unit) } else { 0 };
            storage.map(|storage| storage.zeros(len, unit.dtype)).transpose()
        };
        let away = plan.units().map(array).collect::<Result<_>>()?;
        let (device, places) = (device.clone().without_autodiff(), plan.parked_places());
        Ok(Self { plan, device, kept: HashMap::new(), away, places })
    }

    /// Keeps what this rank keeps of a parameter and returns it empty; one that is not parked is returned as it is.
    pub fn take<const D: usize>(&mut self, number: usize, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>> {
        let record = &self.plan.records[number];
        let Some((unit, at)) = self.places.get(&number).cloned() else { return Ok(param) };
        let flat: Tensor<1> = param.base().inner().reshape([record.numel()]);
        let device = flat.device();
        let own = slice(flat, self.plan.kept_range(number));
        match &mut self.away[unit] {
            Some(array) => array.write(at.start, &own)?,
            None => {
                self.kept.insert(number, own);
            }
        }
        Ok(with(param, Tensor::empty([0; D], &device), true))
    }

    /// The chunks of all units.
    pub fn finish(mut self) -> Parked {
        let (plan, device) = (self.plan, self.device);
        let chunk = |(unit, away): (&Bucket, Option<FlatArray>)| match away {
            Some(array) => Chunk::Away(array),
            None if plan.is_parked(unit) => {
                let shards = unit.members.iter().filter_map(|member| self.kept.remove(member)).collect();
                Chunk::Device(chunk(unit, shards, plan.kept_len(unit), &device))
            }
            None => Chunk::Device(Tensor::empty([0], (&device, unit.dtype))),
        };
        Parked(plan.units().zip(self.away).map(chunk).collect())
    }
}

impl Change for Parking<'_> {
    type Error = Error;

    fn float<const D: usize>(&mut self, at: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>> {
        self.take(at.number, param)
    }
}

/// The shards of the members of a bucket, put together to a chunk of `len` elements, with padding.
pub(crate) fn chunk(bucket: &Bucket, mut shards: Vec<Tensor<1>>, len: usize, device: &Device) -> Tensor<1> {
    let held: usize = shards.iter().map(|shard| shard.dims()[0]).sum();
    match (&*shards, len.saturating_sub(held)) {
        ([_], 0) => shards.remove(0),
        (_, padding) => {
            // Never an empty list.
            shards.push(Tensor::zeros([padding], (device, bucket.dtype)));
            Tensor::cat(shards, 0)
        }
    }
}

/// Parks the parameters of a whole model.
pub(crate) fn park<M: Module>(model: M, plan: &Plan, stores: &Stores, device: &Device) -> Result<(M, Parked)> {
    let mut parking = Parking::new(plan, stores, device)?;
    let model = walk::change(model, &plan.records, &mut parking)?;
    Ok((model, parking.finish()))
}

/// The model with values in the place of some parameters: `values` has them, flat, by the number of the record, and may ask
/// for the parameter's own. They ask for a gradient where `tracked` is true and the parameter does.
pub(crate) fn fill<M: Module>(
    model: M,
    records: &[ParamRecord],
    tracked: bool,
    values: impl FnMut(usize, &dyn Fn() -> Tensor<1>) -> Option<Tensor<1>>,
) -> M {
    struct Fill<F> {
        tracked: bool,
        values: F,
    }
    impl<F: FnMut(usize, &dyn Fn() -> Tensor<1>) -> Option<Tensor<1>>> Change for Fill<F> {
        type Error = Infallible;

        fn float<const D: usize>(
            &mut self,
            At { number, record }: At<'_>,
            param: Param<Tensor<D>>,
        ) -> Result<Param<Tensor<D>>, Infallible> {
            let own = || param.base().inner().reshape([record.numel()]);
            Ok(match (self.values)(number, &own) {
                Some(flat) => with(param, flat.reshape::<D, _>(Shape::from(record.shape())), self.tracked),
                None => param,
            })
        }
    }
    let Ok(model) = walk::change(model, records, &mut Fill { tracked, values });
    model
}

/// The whole model again, from what all ranks keep. Collective.
pub(crate) fn unpark<M: Module>(
    model: M,
    plan: &Plan,
    parked: &Parked,
    context: &Context,
    device: &Device,
) -> Result<M> {
    let mut whole: HashMap<usize, Tensor<1>> = HashMap::new();
    for (unit, chunk) in plan.units().zip(&parked.0).filter(|(unit, _)| plan.is_parked(unit)) {
        whole.extend(members(unit, &plan.records, gathered(chunk.read(device)?, unit, plan, context)?));
    }
    Ok(fill(model, &plan.records, true, |number, _| whole.remove(&number)))
}

/// The whole of a unit. Collective where ranks keep shards.
pub(crate) fn gathered(own: Tensor<1>, unit: &Bucket, plan: &Plan, context: &Context) -> Result<Tensor<1>> {
    match plan.shards_parameters() {
        true => Ok(context.axis(unit.axis).all_gather_uneven(own, 0, &unit.shards)?),
        false => Ok(own),
    }
}

/// Divides the parked parameters by another plan of the same units, one unit after the other. Collective.
pub(crate) fn recut(parked: Parked, before: &Plan, plan: &Plan, context: &Context, stores: &Stores) -> Result<Parked> {
    let units = before.units().zip(plan.units()).zip(parked.0);
    let recut = units.map(|((before, unit), old)| {
        if !plan.is_parked(unit) || before == unit {
            return Ok(old);
        }
        let device = moment_device(&old);
        let flat = gathered(old.read(&device)?, before, plan, context)?;
        drop(old);
        let mut whole: HashMap<usize, Tensor<1>> = members(before, &plan.records, flat).collect();
        // Owners have the members in another order.
        let own = |member: &usize| Some(slice(whole.remove(member)?, plan.kept_range(*member)));
        let own = chunk(unit, unit.members.iter().filter_map(own).collect(), plan.kept_len(unit), &device);
        Ok(match stores.at(plan.tiers.parameters) {
            None => Chunk::Device(own),
            Some(storage) => {
                let mut array = storage.zeros(own.dims()[0], unit.dtype)?;
                array.write(0, &own)?;
                Chunk::Away(array)
            }
        })
    });
    Ok(Parked(recut.collect::<Result<_>>()?))
}

/// Where a chunk's values are for a moment.
pub(crate) fn moment_device(chunk: &Chunk) -> Device {
    match chunk {
        Chunk::Device(values) => values.device(),
        Chunk::Away(_) => Device::flex(),
    }
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
    bucket.places(move |member| records[member].numel()).map(move |(member, at)| (member, flat.clone().slice([at])))
}

/// This rank's parts of a parked unit's members, on a device, from its chunk.
pub(crate) fn parked_parts(
    unit: &Bucket,
    plan: &Plan,
    chunk: &Chunk,
    device: &Device,
) -> Result<Vec<(usize, Tensor<1>)>> {
    let kept = chunk.read(device)?;
    Ok(match plan.shards_parameters() {
        true => own_parts(unit, plan, &kept).collect(),
        // The whole is kept.
        false => members(unit, &plan.records, kept)
            .map(|(member, flat)| (member, flat.slice([plan.own_range(member)])))
            .collect(),
    })
}

/// This rank's parts of a bucket's members, from a flat tensor of them alone.
pub(crate) fn own_parts<'a>(
    bucket: &'a Bucket,
    plan: &'a Plan,
    own: &Tensor<1>,
) -> impl Iterator<Item = (usize, Tensor<1>)> + 'a {
    let own = own.clone();
    plan.own_ranges(bucket).map(move |(member, range)| (member, own.clone().slice([range])))
}
