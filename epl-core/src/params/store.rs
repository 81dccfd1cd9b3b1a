//! A model whose parameters lie where their residency says.
//!
//! ```text
//! model       [ a ][ b ][ c ]          whole, as layers know it
//!    park ▼            ▲ fill
//! model       [   ][   ][   ]          empty
//! flats       [ a b ┆ b c ]            a flat parameter for each bucket, away from the device, or of which every rank keeps
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
use epl_comm::{Pending, ProcessGroup};

use super::residency::Home;
use super::storage::StateStorage;
use super::unit::Slot;
use super::walk::{self, At, Change, Visit};
use super::{Bucket, ParamRecord, ParamTable, with};
use crate::checkpoint::{Away, TensorValues};
use crate::error::{Error, Result};
use crate::model::context::Context;
use crate::offload::FlatArray;
use crate::topology::cluster::Axis;

/// A model, and beside it the parameters that are not in it between their uses.
#[derive(Debug)]
pub(crate) struct ParamStore<M> {
    /// Taken only while it is changed.
    model: Option<M>,
    /// One for each of [`ParamTable::units`], empty where the unit lies in the model.
    pub(super) flats: Vec<FlatParam>,
    storage: StateStorage,
}

/// What this rank keeps of a unit, on the device or away from it.
#[derive(Debug)]
pub(super) enum FlatParam {
    Device(Tensor<1>),
    Away(FlatArray),
}

/// What is gathered of a unit.
pub(crate) enum Gathered {
    /// This rank keeps the whole.
    Here(Box<Tensor<1>>),
    Pending(Box<Pending<Tensor<1>>>),
}

impl Gathered {
    /// The whole unit.
    pub fn wait(self) -> Result<Tensor<1>> {
        match self {
            Self::Here(flat) => Ok(*flat),
            Self::Pending(pending) => Ok(pending.wait()?),
        }
    }
}

/// What lies flat of a parameter on this rank.
#[derive(Clone, Debug)]
pub(crate) struct FlatPart<'a> {
    /// The elements of the parameter.
    pub range: Range<usize>,
    /// Whether no replica keeps them as well.
    pub is_shard: bool,
    flat: &'a FlatParam,
    /// Where they begin in the flat parameter.
    start: usize,
}

impl<'a> FlatPart<'a> {
    /// Some of these elements, counted from the first that is kept.
    pub fn values(&self, part: Range<usize>) -> TensorValues<'a> {
        match self.flat {
            FlatParam::Away(array) => TensorValues::Away(Away::of(array, self.start + part.start, part.len())),
            FlatParam::Device(values) => {
                TensorValues::of(values.clone().slice([self.start + part.start..self.start + part.end]))
            }
        }
    }

    /// All of these elements, on a device.
    pub fn tensor(&self, device: &Device) -> Result<Tensor<1>> {
        let all = self.start..self.start + self.range.len();
        match self.flat {
            FlatParam::Away(array) => array.read(all, device),
            FlatParam::Device(values) => Ok(values.clone().slice([all])),
        }
    }
}

impl FlatParam {
    /// Its values, on a device.
    fn read(&self, device: &Device) -> Result<Tensor<1>> {
        match self {
            Self::Device(values) => Ok(values.clone()),
            Self::Away(array) => array.read(0..array.len(), device),
        }
    }

    /// Replaces all of its values.
    pub(super) fn write(&mut self, values: Tensor<1>) -> Result<()> {
        match self {
            Self::Device(own) => {
                *own = values.to_device(&own.device());
                Ok(())
            }
            Self::Away(array) => array.write(0, &values),
        }
    }

    /// Its bytes on the device.
    fn device_bytes(&self) -> u64 {
        match self {
            Self::Device(values) => (values.shape().num_elements() * values.dtype().size()) as u64,
            Self::Away(_) => 0,
        }
    }

    /// Where its values are for a moment.
    pub(super) fn moment_device(&self) -> Device {
        match self {
            Self::Device(values) => values.device(),
            Self::Away(_) => Device::flex(),
        }
    }
}

impl<M: Module> ParamStore<M> {
    /// Puts the parameters of a whole model where they lie.
    ///
    /// # Errors
    ///
    /// When there is no room away from the device.
    pub fn of(model: M, table: &ParamTable, storage: StateStorage, device: &Device) -> Result<Self> {
        let mut parking = Parking::new(table, &storage, device)?;
        let model = walk::change(model, &table.records, &mut parking)?;
        Ok(parking.finish().beside(model, storage))
    }

    /// A model whose parameters have no values, for its plan alone.
    pub fn undrawn(model: M, storage: StateStorage) -> Self {
        Self { model: Some(model), flats: Vec::new(), storage }
    }

    /// The model, without what lies beside it.
    pub fn model(&self) -> &M {
        self.model.as_ref().expect("the model is only away while it is changed")
    }

    /// Gives the model for another one.
    pub fn change<T>(&mut self, f: impl FnOnce(M) -> (M, T)) -> T {
        let model = self.model.take().expect("the model is only away while it is changed");
        let (model, result) = f(model);
        self.model = Some(model);
        result
    }

    /// The model, of whose parameters these ask for no gradient any more, by the numbers of their records.
    pub fn freeze(&mut self, records: &[ParamRecord], frozen: &[bool]) {
        if frozen.contains(&true) {
            self.change(|model| (freeze(model, records, frozen), ()));
        }
    }

    /// The model, without what lies beside it; that is dropped.
    pub fn into_model(self) -> M {
        self.model.expect("the model is only away while it is changed")
    }

    /// The means to keep state away from the device.
    pub fn storage(&self) -> &StateStorage {
        &self.storage
    }

    /// Bytes on the device of what lies beside the model.
    pub fn flat_bytes(&self) -> u64 {
        self.flats.iter().map(FlatParam::device_bytes).sum()
    }

    /// What lies away from the device.
    pub fn away(&self) -> impl Iterator<Item = &FlatArray> {
        self.flats.iter().filter_map(|flat| match flat {
            FlatParam::Device(_) => None,
            FlatParam::Away(array) => Some(array),
        })
    }

    /// The whole model, and the means to keep its parameters elsewhere again. Collective.
    pub fn into_whole(mut self, table: &ParamTable, context: &Context, device: &Device) -> Result<(M, StateStorage)> {
        let model = self.model.take().expect("the model is only away while it is changed");
        let model = self.whole(model, table, context, device)?;
        Ok((model, self.storage))
    }

    /// `model`, which is this one or a copy of it, with all of its parameters. Collective.
    pub fn whole(&self, model: M, table: &ParamTable, context: &Context, device: &Device) -> Result<M> {
        let mut whole: HashMap<usize, Tensor<1>> = HashMap::new();
        for (number, unit) in table.gathered() {
            whole.extend(unit.split(joined(self.flats[number].read(device)?, unit, context)?));
        }
        Ok(fill(model, &table.records, true, |number, _| whole.remove(&number)))
    }

    /// One unit that lies beside the model, whole, with the numbers of its members' records. Collective where ranks keep
    /// shards.
    pub fn whole_unit(&self, number: usize, table: &ParamTable, context: &Context) -> Result<Vec<(usize, Tensor<1>)>> {
        let (unit, flat) = (table.unit(number), &self.flats[number]);
        Ok(unit.split(joined(flat.read(&flat.moment_device())?, unit, context)?).collect())
    }

    /// Begins to gather a unit over a group, and tells how many bytes of the device that takes more. Collective where ranks
    /// keep shards.
    pub fn gather<'g>(
        &self,
        (number, unit): (usize, &Bucket),
        over: impl FnOnce(Axis) -> &'g ProcessGroup,
        context: &Context,
        device: &Device,
    ) -> Result<(Gathered, u64)> {
        let flat = &self.flats[number];
        let group = unit.residency.is_sharded().then(|| over(unit.axis)).filter(|group| group.size() > 1);
        let Some(group) = group else {
            let bytes = (unit.kept_len() * unit.dtype.size()) as u64 - flat.device_bytes();
            return Ok((Gathered::Here(Box::new(flat.read(device)?)), bytes));
        };
        let bytes = (unit.shards.iter().sum::<usize>() * unit.dtype.size()) as u64;
        let own = flat.read(device)?;
        // What is run again needs its parameters again.
        let gather = || group.start_all_gather_uneven(own, 0, &unit.shards);
        Ok((Gathered::Pending(Box::new(context.world().apart(gather)?)), bytes))
    }

    /// This rank's parts of a unit's members, with the numbers of their records.
    pub fn own(&self, number: usize, table: &ParamTable, device: &Device) -> Result<Vec<(usize, Tensor<1>)>> {
        let unit = table.unit(number);
        Ok(match unit.residency.parameters {
            Home::Flat { is_shard: true, .. } => unit.split_own(&self.flats[number].read(device)?).collect(),
            Home::Flat { is_shard: false, .. } => unit.split_own_of_whole(self.flats[number].read(device)?).collect(),
            Home::Model => {
                let mut whole = read(self.model(), &table.records, &unit.members);
                let own = |slot: &Slot| {
                    let part = whole.remove(&slot.record)?.slice([slot.own.clone()]);
                    Some((slot.record, part.to_device(device)))
                };
                unit.slots.iter().filter_map(own).collect()
            }
        })
    }

    /// This rank's parts of all that lies beside the model, by the numbers of their records.
    pub fn own_flat(&self, table: &ParamTable, device: &Device) -> Result<HashMap<usize, Tensor<1>>> {
        let mut all = HashMap::new();
        for (number, _) in table.gathered() {
            all.extend(self.own(number, table, device)?);
        }
        Ok(all)
    }

    /// The array away from the device in which this rank's part of a unit lies, and nothing else: what it updates may be
    /// updated there.
    pub fn in_place(&mut self, number: usize, unit: &Bucket) -> Option<&mut FlatArray> {
        let is_own = unit.residency.is_sharded() || (unit.residency.is_gathered() && unit.shards.is_empty());
        match self.flats.get_mut(number)? {
            FlatParam::Away(array) if is_own => Some(array),
            _ => None,
        }
    }

    /// Puts this rank's new part of a unit where its parameters lie, with those of the replicas, if the whole lies there.
    /// Collective over the group of the unit's axis that `over` gives.
    pub fn put<'g>(
        &mut self,
        number: usize,
        own: Tensor<1>,
        table: &ParamTable,
        over: impl FnOnce(Axis) -> &'g ProcessGroup,
        device: &Device,
    ) -> Result<()> {
        let unit = table.unit(number);
        if unit.residency.is_sharded() {
            return self.flats[number].write(own);
        }
        // One unit after the other: no other is whole beside the parameters.
        let flat = match unit.shards.is_empty() {
            true => own,
            false => over(unit.axis).all_gather_uneven(own, 0, &unit.shards)?,
        };
        if unit.residency.is_gathered() {
            return self.flats[number].write(flat.slice([0..unit.kept_len()]));
        }
        let mut values: HashMap<usize, Tensor<1>> = unit.split(flat.to_device(device)).collect();
        self.change(|model| (fill(model, &table.records, true, |number, _| values.remove(&number)), ()));
        Ok(())
    }

    /// What lies beside the model, by the numbers of the records.
    pub fn kept<'a>(&'a self, table: &ParamTable) -> HashMap<usize, FlatPart<'a>> {
        let of_unit = |(number, unit): (usize, &Bucket)| {
            let (flat, is_shard) = (&self.flats[number], unit.residency.is_sharded());
            let kept = |slot: &Slot| {
                let kept = FlatPart { range: slot.kept.clone(), is_shard, flat, start: slot.kept_at.start };
                (slot.record, kept)
            };
            unit.slots.iter().map(kept).collect::<Vec<_>>()
        };
        table.gathered().flat_map(of_unit).collect()
    }

    /// Reads new values for all parameters: `read` gives some elements of one, on a device.
    ///
    /// # Errors
    ///
    /// The first of `read`'s. The model is whole then, and some of its values are new.
    pub fn load(
        &mut self,
        table: &ParamTable,
        device: &Device,
        read: impl Fn(&ParamRecord, Range<usize>, &Device) -> Result<Tensor<1>>,
    ) -> Result<()> {
        let (records, mut failed) = (&table.records, None);
        let mut values = |number: usize, _: &dyn Fn() -> Tensor<1>| {
            let record = &records[number];
            if !record.held || record.parked || failed.is_some() {
                return None;
            }
            read(record, 0..record.numel(), device).map_err(|error| failed = Some(error)).ok()
        };
        // Not a clone: the old values go one by one, as the new ones come.
        self.change(|model| (fill(model, records, true, &mut values), ()));
        failed.map_or(Ok(()), Err)?;
        for (number, unit) in table.gathered() {
            let of = |slot: &Slot, device: &Device| read(&records[slot.record], slot.kept.clone(), device);
            match &mut self.flats[number] {
                FlatParam::Away(array) => {
                    for slot in &unit.slots {
                        array.write(slot.kept_at.start, &of(slot, &Device::flex())?)?;
                    }
                }
                FlatParam::Device(values) => {
                    let device = values.device();
                    let own = unit.slots.iter().map(|slot| of(slot, &device)).collect::<Result<_>>()?;
                    *values = unit.join(own, unit.kept_len(), &device);
                }
            }
        }
        Ok(())
    }

    /// The same parameters where another table of the same units says, one unit after the other. Collective.
    pub fn recut(self, before: &ParamTable, table: &ParamTable, context: &Context) -> Result<Self> {
        let Self { model, flats, storage } = self;
        let units = before.units().zip(table.units()).zip(flats);
        let recut = units.map(|((before, unit), old)| {
            if !unit.residency.is_gathered() || before == unit {
                return Ok(old);
            }
            let device = old.moment_device();
            let flat = joined(old.read(&device)?, before, context)?;
            drop(old);
            let mut whole: HashMap<usize, Tensor<1>> = before.split(flat).collect();
            // Owners have the members in another order.
            let own = |slot: &Slot| Some(slice(whole.remove(&slot.record)?, slot.kept.clone()));
            let own = unit.join(unit.slots.iter().filter_map(own).collect(), unit.kept_len(), &device);
            let Some(storage) = storage.of(unit) else { return Ok(FlatParam::Device(own)) };
            let mut array = storage.zeros(own.dims()[0], unit.dtype)?;
            array.write(0, &own)?;
            Ok(FlatParam::Away(array))
        });
        let flats = recut.collect::<Result<_>>()?;
        Ok(Self { model, flats, storage })
    }
}

/// The model, of whose parameters these ask for no gradient, by the numbers of their records.
pub(crate) fn freeze<M: Module>(model: M, records: &[ParamRecord], frozen: &[bool]) -> M {
    struct Freezing<'a>(&'a [bool]);

    impl Change for Freezing<'_> {
        type Error = Infallible;

        fn float<const D: usize>(
            &mut self,
            at: At<'_>,
            param: Param<Tensor<D>>,
        ) -> Result<Param<Tensor<D>>, Infallible> {
            let is_frozen = self.0.get(at.number).copied().unwrap_or_default();
            Ok(if is_frozen { param.set_require_grad(false) } else { param })
        }
    }

    let Ok(model) = walk::change(model, records, &mut Freezing(frozen));
    model
}

/// The whole of a unit. Collective where ranks keep shards.
fn joined(own: Tensor<1>, unit: &Bucket, context: &Context) -> Result<Tensor<1>> {
    match unit.residency.is_sharded() {
        true => Ok(context.axis(unit.axis).all_gather_uneven(own, 0, &unit.shards)?),
        false => Ok(own),
    }
}

/// Puts parameters where they lie, one after the other.
pub(super) struct Parking<'a> {
    table: &'a ParamTable,
    device: Device,
    /// By the number of the record, where they lie on the device.
    kept: HashMap<usize, Tensor<1>>,
    /// Arrays away from it, by the number of the unit.
    away: Vec<Option<FlatArray>>,
    /// By the number of the record.
    slots: HashMap<usize, (usize, &'a Slot)>,
}

/// What a [`Parking`] leaves.
pub(super) struct Parked(Vec<FlatParam>);

impl Parked {
    /// The store of a model that is empty of them.
    pub fn beside<M>(self, model: M, storage: StateStorage) -> ParamStore<M> {
        ParamStore { model: Some(model), flats: self.0, storage }
    }
}

impl<'a> Parking<'a> {
    /// Nothing is put away yet.
    ///
    /// # Errors
    ///
    /// When there is no room for the arrays away from the device.
    pub fn new(table: &'a ParamTable, storage: &StateStorage, device: &Device) -> Result<Self> {
        let array = |unit: &Bucket| {
            let storage = storage.of(unit);
            storage.map(|storage| storage.zeros(unit.kept_len(), unit.dtype)).transpose()
        };
        let away = table.units().map(array).collect::<Result<_>>()?;
        let slots = table.gathered().flat_map(|(number, unit)| unit.slots.iter().map(move |slot| (number, slot)));
        let slots = slots.map(|(number, slot)| (slot.record, (number, slot))).collect();
        Ok(Self { table, device: device.clone().without_autodiff(), kept: HashMap::new(), away, slots })
    }

    /// Keeps what this rank keeps of a parameter and returns it empty; one that lies in the model is returned as it is.
    pub fn take<const D: usize>(&mut self, number: usize, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>> {
        let record = &self.table.records[number];
        let Some((unit, slot)) = self.slots.get(&number) else { return Ok(param) };
        let flat: Tensor<1> = param.base().inner().reshape([record.numel()]);
        let device = flat.device();
        let own = slice(flat, slot.kept.clone());
        match &mut self.away[*unit] {
            Some(array) => array.write(slot.kept_at.start, &own)?,
            None => {
                self.kept.insert(number, own);
            }
        }
        Ok(with(param, Tensor::empty([0; D], &device), true))
    }

    /// The flat parameters of all units.
    pub fn finish(mut self) -> Parked {
        let (table, device) = (self.table, self.device);
        let flat = |(unit, away): (&Bucket, Option<FlatArray>)| match away {
            Some(array) => FlatParam::Away(array),
            None if unit.residency.is_gathered() => {
                let parts = unit.members.iter().filter_map(|member| self.kept.remove(member)).collect();
                FlatParam::Device(unit.join(parts, unit.kept_len(), &device))
            }
            None => FlatParam::Device(Tensor::empty([0], (&device, unit.dtype))),
        };
        Parked(table.units().zip(self.away).map(flat).collect())
    }
}

impl Change for Parking<'_> {
    type Error = Error;

    fn float<const D: usize>(&mut self, at: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>> {
        self.take(at.number, param)
    }
}

/// The model with values in the place of some parameters: `values` has them, flat, by the number of the record, and may ask
/// for the parameter's own. They ask for a gradient where `tracked` is true and the parameter does.
pub(crate) fn fill<M: Module>(
    model: M,
    records: &[ParamRecord],
    tracked: bool,
    mut values: impl FnMut(usize, &dyn Fn() -> Tensor<1>) -> Option<Tensor<1>>,
) -> M {
    let Ok(model) = walk::change(model, records, &mut FromFlat { tracked, values: &mut values });
    model
}

/// Takes values from whoever fills a model. Not generic over the closure: for each model a walk is compiled once for each kind of
/// change, and so once for this one.
struct FromFlat<'a> {
    tracked: bool,
    values: &'a mut dyn FnMut(usize, &dyn Fn() -> Tensor<1>) -> Option<Tensor<1>>,
}

impl Change for FromFlat<'_> {
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

/// Some parameters of a model, flat, by the numbers of their records.
pub(super) fn read<M: Module>(model: &M, records: &[ParamRecord], numbers: &[usize]) -> HashMap<usize, Tensor<1>> {
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
