//! Whole tensors from the slices that the ranks hold.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Shape, Tensor, TensorData};
use epl_comm::{ProcessGroup, shard_range};

use super::gradients::GradientStore;
use crate::error::{Error, Result};
use crate::launch::LaidOutModel;
use crate::model::context::Context;
use crate::model::segment::Model;
use crate::optim::StateFields;
use crate::params::ParamRecord;
use crate::params::store::ParamStore;
use crate::params::walk::{self, At, Change, Visit};
use crate::plan::Plan;
use crate::topology::cluster::Axis;

/// Which tensors of the same shape as the parameters, or as a rank's shards of them, are gathered.
pub(crate) enum GatherSource<'a> {
    Parameters,
    /// Parameters without a gradient are left out.
    Gradients(&'a GradientStore),
    /// By parameter: the fields of the optimizer's state.
    Optimizer(HashMap<ParamId, StateFields>),
}

/// The whole tensors by path, on every rank that `keeps` them; others let each go once all have it. Collective.
pub(crate) fn gather<M: Module>(
    params: &ParamStore<M>,
    plan: &Plan,
    context: &Context,
    source: &GatherSource<'_>,
    keeps: bool,
) -> Result<BTreeMap<String, TensorData>> {
    let parked = match source {
        GatherSource::Parameters => params.own_flat(&plan.params, &Device::flex())?,
        GatherSource::Gradients(_) | GatherSource::Optimizer(_) => HashMap::new(),
    };
    let mut gatherer = Gatherer { context, source, parked, keeps, whole: BTreeMap::new() };
    walk::visit(params.model(), &plan.params.records, &mut gatherer)?;
    Ok(gatherer.whole)
}

impl<M: Model> LaidOutModel<M> {
    /// The parameters, whole, by path: for an export of a model that is not trained, and so needs no engine. Zeros in a program that
    /// is run for its plan, where they have no values. Collective.
    ///
    /// # Errors
    ///
    /// When a peer fails.
    pub fn parameters(&self) -> Result<BTreeMap<String, TensorData>> {
        if self.wanted.is_some() {
            // Memory that the system gives when it is touched.
            let zeros = |ParamRecord { global_shape, dtype, .. }: &ParamRecord| {
                let bytes = global_shape.iter().product::<usize>() * dtype.size();
                TensorData::from_bytes_vec(vec![0; bytes], global_shape.clone(), *dtype)
            };
            return Ok(self.plan.records().iter().map(|record| (record.name.clone(), zeros(record))).collect());
        }
        gather(&self.params, &self.plan, self.context(), &GatherSource::Parameters, true)
    }
}

struct Gatherer<'a> {
    context: &'a Context,
    source: &'a GatherSource<'a>,
    /// Shards of parameters that the model does not have, by the numbers of their records.
    parked: HashMap<usize, Tensor<1>>,
    keeps: bool,
    whole: BTreeMap<String, TensorData>,
}

impl Gatherer<'_> {
    /// The whole of what this rank's stage has of a parameter, from this rank's shard of it, flat.
    fn of_stage<const D: usize>(&self, record: &ParamRecord, own: Tensor<1>) -> Result<Tensor<D>> {
        let flat = match &record.shard {
            None => own,
            Some(shard) => self.context.axis(record.reduced_over()).all_gather_uneven(own, 0, &shard.sizes)?,
        };
        Ok(flat.reshape::<D, _>(Shape::from(record.shape())))
    }

    /// What this rank's stage has of a parameter, by name; of one that another stage holds, the same names.
    fn held<const D: usize>(
        &self,
        number: usize,
        record: &ParamRecord,
        param: &Param<Tensor<D>>,
    ) -> Result<Vec<(String, Tensor<D>)>> {
        let device = param.base().device().without_autodiff();
        let name = || record.name.clone();
        let nothing = || Tensor::<D>::empty([0; D], (&device, record.dtype));
        Ok(match self.source {
            GatherSource::Parameters => match self.parked.get(&number) {
                Some(shard) => vec![(name(), self.of_stage(record, shard.clone())?)],
                None => vec![(name(), param.base().inner())],
            },
            GatherSource::Gradients(_) if !record.held && record.trainable => vec![(name(), nothing())],
            GatherSource::Gradients(store) => match store.own(record) {
                Some(shard) => vec![(name(), self.of_stage(record, shard)?)],
                None => Vec::new(),
            },
            GatherSource::Optimizer(fields) => self.state(record, fields.get(&record.id), &device)?,
        })
    }

    /// The tensors of the optimizer's state that have the shape of what this rank updates.
    fn state<const D: usize>(
        &self,
        record: &ParamRecord,
        fields: Option<&StateFields>,
        device: &Device,
    ) -> Result<Vec<(String, Tensor<D>)>> {
        let flat = |data: &TensorData| match data.rank() {
            1 => Tensor::<1>::from_data(data.clone(), device),
            _ => Tensor::<D>::from_data(data.clone(), device).reshape([data.num_elements()]),
        };
        let own: BTreeMap<String, Tensor<1>> = fields
            .into_iter()
            .flatten()
            .filter_map(|(field, value)| Some((field, value.tensor()?)))
            .filter(|(_, data)| record.updates(&data.shape().to_vec()))
            .map(|(field, data)| (field.clone(), flat(data)))
            .collect();
        let names = names_of_first(own.keys().cloned().collect(), record, self.context)?;
        let tensor = |field: &String| {
            let tensor = match own.get(field).cloned() {
                _ if !record.held => Tensor::empty([0; D], (device, record.dtype)),
                Some(own) => self.of_stage(record, own)?,
                None => self.of_stage(record, Tensor::empty([0], (device, record.dtype)))?,
            };
            Ok((format!("{}.{field}", record.name), tensor))
        };
        names.iter().map(tensor).collect()
    }
}

/// The whole of a parameter, from the slices of the ranks that hold it. Collective over the stages, and over the axes
/// that divide it in a stage that holds it.
fn whole_of<const D: usize>(own: Tensor<D>, record: &ParamRecord, context: &Context) -> Result<Tensor<D>> {
    let stages = context.axis(Axis::Pipeline);
    // Of a parameter that is held elsewhere only the shape matters.
    let mut whole = match record.held {
        true => own,
        false => Tensor::empty(Shape::from(record.global_shape.clone()), (&own.device(), record.dtype)),
    };
    for cut in record.cuts.iter().filter(|_| record.held) {
        let group = context.axis(cut.axis);
        let extent = record.global_shape[cut.dim];
        let sizes: Vec<usize> =
            (0..group.size()).map(|member| shard_range(extent, group.size(), member).len()).collect();
        whole = group.all_gather_uneven(whole, cut.dim, &sizes)?;
    }
    match stages.size() {
        1 => Ok(whole),
        _ => Ok(stages.broadcast(whole, first_holder(record, context))?),
    }
}

/// The first member of this rank's group along the pipeline axis that holds a parameter.
fn first_holder(record: &ParamRecord, context: &Context) -> usize {
    context.mesh().widths()[record.stages[0]].members.start
}

/// The model with the parameters that other stages hold, and with the whole of those that were cut though their layers do not
/// know it. Collective over the stages, and over the tensor axis where such are.
pub(crate) fn whole<M: Module>(model: M, plan: &Plan, context: &Context) -> Result<M> {
    let stages = context.axis(Axis::Pipeline);
    if stages.size() == 1 && !plan.records().iter().any(ParamRecord::is_cut_unknown) {
        return Ok(model);
    }
    walk::change(model, &plan.params.records, &mut OwnPartFiller { context })
}

struct OwnPartFiller<'a> {
    context: &'a Context,
}

impl OwnPartFiller<'_> {
    /// What a layer of this rank reads of a parameter that another stage holds.
    fn own_part<const D: usize>(&self, record: &ParamRecord, held: Tensor<D>) -> Result<Tensor<D>> {
        let whole = whole_of(held, record, self.context)?;
        let ranges: Option<[Range<usize>; D]> = record.ranges().try_into().ok();
        Ok(match ranges.filter(|_| !record.cuts.is_empty() && !record.is_cut_unknown()) {
            None => whole,
            Some(ranges) => {
                let device = whole.device();
                // Through the host, so that the slice does not keep the whole alive.
                Tensor::from_data(whole.slice(ranges).into_data(), &device)
            }
        })
    }
}

impl Change for OwnPartFiller<'_> {
    type Error = Error;

    fn float<const D: usize>(&mut self, at: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>> {
        let is_own = at.record.held && !at.record.is_cut_unknown();
        if is_own && self.context.axis(Axis::Pipeline).size() == 1 {
            return Ok(param);
        }
        let values = self.own_part(at.record, param.base())?;
        Ok(if is_own { param } else { Param::initialized(param.id, values) })
    }
}

/// The names that the first of those that update a parameter has. Collective over its replicas, then over the stages.
fn names_of_first(own: Vec<String>, record: &ParamRecord, context: &Context) -> Result<Vec<String>> {
    let own = match &record.shard {
        Some(shard) => {
            let first = shard.sizes.iter().position(|size| *size > 0).unwrap_or(0);
            names_of(first, own, context.axis(record.reduced_over()))?
        }
        None => own,
    };
    names_of(first_holder(record, context), own, context.axis(Axis::Pipeline))
}

/// The names that a member of a group has. Collective.
fn names_of(first: usize, own: Vec<String>, group: &ProcessGroup) -> Result<Vec<String>> {
    Ok(group.all_gather_texts(&own.join("\n"))?[first].lines().map(str::to_string).collect())
}

impl Visit for Gatherer<'_> {
    type Error = Error;

    fn float<const D: usize>(&mut self, At { number, record }: At<'_>, param: &Param<Tensor<D>>) -> Result<()> {
        for (name, held) in self.held(number, record, param)? {
            let whole = whole_of(held, record, self.context)?;
            if self.keeps {
                self.whole.insert(name, whole.into_data());
            }
        }
        Ok(())
    }
}
