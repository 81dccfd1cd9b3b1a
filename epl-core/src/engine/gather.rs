//! Whole tensors from the slices that the ranks hold.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Shape, Tensor, TensorData};
use epl_comm::{ProcessGroup, shard_range};

use super::gradients::GradientStore;
use crate::cluster::Axis;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::plan::{ParamRecord, Plan};

/// Which tensors of the same shape as the parameters are gathered.
pub(crate) enum Source<'a> {
    Parameters,
    /// Parameters without a gradient are left out.
    Gradients(&'a GradientStore),
    /// By parameter: the fields of the optimizer's state.
    Optimizer(HashMap<ParamId, Vec<(String, TensorData)>>),
}

/// The whole tensors by path, on every rank. Collective.
pub(crate) fn gather<M: Module>(
    model: &M,
    plan: &Plan,
    context: &Context,
    source: &Source<'_>,
) -> Result<BTreeMap<String, TensorData>> {
    let mut gatherer = Gatherer { context, source, records: plan.records.iter(), whole: Ok(BTreeMap::new()) };
    model.visit(&mut gatherer);
    gatherer.whole
}

/// The tensors of an optimizer's state, by parameter.
pub(crate) fn optimizer_state(optimizer: &ModuleOptimizer) -> Result<Source<'static>> {
    let failed = |error: String| Error::invalid(format!("the optimizer's state cannot be read: {error}"));
    let bytes = optimizer.into_bytes().map_err(|error| failed(error.to_string()))?;
    let reader = burn_pack::Reader::from_bytes(bytes).map_err(|error| failed(error.to_string()))?;
    let mut fields: HashMap<ParamId, Vec<(String, TensorData)>> = HashMap::new();
    for tensor in reader.into_tensors().map_err(|error| failed(error.to_string()))? {
        let (name, dtype, shape, id, bytes) = tensor.into_parts().map_err(|error| failed(error.to_string()))?;
        let field = name.split_once('.').map_or(name.as_str(), |(_, field)| field).to_string();
        let data = TensorData::from_bytes(bytes, shape, dtype);
        fields.entry(ParamId::from(id.unwrap_or_default())).or_default().push((field, data));
    }
    Ok(Source::Optimizer(fields))
}

struct Gatherer<'a> {
    context: &'a Context,
    source: &'a Source<'a>,
    records: core::slice::Iter<'a, ParamRecord>,
    whole: Result<BTreeMap<String, TensorData>>,
}

impl Gatherer<'_> {
    fn whole<const D: usize>(&self, record: &ParamRecord, held: Tensor<D>) -> Result<TensorData> {
        let mut whole = of_its_stage(held, record, self.context.axis(Axis::Pipeline))?;
        for cut in &record.cuts {
            let group = self.context.axis(cut.axis);
            let extent = record.global_shape[cut.dim];
            let sizes: Vec<usize> =
                (0..group.size()).map(|member| shard_range(extent, group.size(), member).len()).collect();
            whole = group.all_gather_uneven(whole, cut.dim, &sizes)?;
        }
        Ok(whole.into_data())
    }

    /// What this rank holds of a parameter, by name; of one that another stage holds, the same names.
    fn held<const D: usize>(&self, record: &ParamRecord, param: &Param<Tensor<D>>) -> Result<Vec<(String, Tensor<D>)>> {
        let device = param.base().device().without_autodiff();
        let nothing = || Tensor::<D>::empty([0; D], (&device, record.dtype));
        let shaped = |flat: &Tensor<1>| flat.clone().reshape::<D, _>(Shape::from(record.shape()));
        Ok(match self.source {
            Source::Parameters => vec![(record.name.clone(), param.base().inner())],
            Source::Gradients(_) if !record.held && record.trainable => vec![(record.name.clone(), nothing())],
            Source::Gradients(store) => {
                store.get(record.id).map(|flat| (record.name.clone(), shaped(flat))).into_iter().collect()
            }
            Source::Optimizer(fields) => {
                let fields = fields.get(&record.id).into_iter().flatten();
                let own: BTreeMap<String, Tensor<D>> = fields
                    .filter(|(_, data)| data.shape().to_vec() == record.shape())
                    .map(|(field, data)| (field.clone(), Tensor::from_data(data.clone(), &device)))
                    .collect();
                let names =
                    names_of_first(own.keys().cloned().collect(), record.stages[0], self.context.axis(Axis::Pipeline))?;
                let tensor = |field: &String| own.get(field).cloned().unwrap_or_else(nothing);
                names.iter().map(|field| (format!("{}.{field}", record.name), tensor(field))).collect()
            }
        })
    }
}

/// What the first stage that holds a parameter holds of it. Collective over the stages.
fn of_its_stage<const D: usize>(own: Tensor<D>, record: &ParamRecord, stages: &ProcessGroup) -> Result<Tensor<D>> {
    if stages.size() == 1 {
        return Ok(own);
    }
    let values = match record.held {
        true => own,
        // Only its shape matters.
        false => Tensor::empty(Shape::from(record.shape()), (&own.device(), record.dtype)),
    };
    Ok(stages.broadcast(values, record.stages[0])?)
}

/// The model with the parameters that other stages hold. Collective over the stages.
pub(crate) fn whole<M: Module>(model: M, plan: &Plan, context: &Context) -> Result<M> {
    let stages = context.axis(Axis::Pipeline);
    if stages.size() == 1 {
        return Ok(model);
    }
    let mut filler = Filler { stages, records: plan.records.iter(), error: None };
    let model = model.map(&mut filler);
    filler.error.map_or(Ok(model), Err)
}

struct Filler<'a> {
    stages: &'a ProcessGroup,
    records: core::slice::Iter<'a, ParamRecord>,
    error: Option<Error>,
}

impl ModuleMapper for Filler<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let record = self.records.next().expect("a plan has a record for every parameter, in the module's order");
        if self.error.is_some() {
            return param;
        }
        match of_its_stage(param.base(), record, self.stages) {
            Ok(values) => Param::initialized(param.id, values),
            Err(error) => {
                self.error = Some(error);
                param
            }
        }
    }
}

/// The names that member `first` of a group has. Collective.
fn names_of_first(own: Vec<String>, first: usize, group: &ProcessGroup) -> Result<Vec<String>> {
    if group.size() == 1 {
        return Ok(own);
    }
    let text: Vec<i64> = own.join("\n").bytes().map(i64::from).collect();
    let lens = group.all_gather_counts(&[text.len() as i64])?;
    let mut padded = text;
    padded.resize(lens.iter().map(|len| len[0]).max().unwrap_or(0) as usize, 0);
    let all = group.all_gather_counts(&padded)?;
    let bytes: Vec<u8> = all[first][..lens[first][0] as usize].iter().map(|byte| *byte as u8).collect();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(text.lines().map(str::to_string).collect())
}

impl ModuleVisitor for Gatherer<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.whole.is_err() {
            return;
        }
        let record = self.records.next().expect("a plan has a record for every parameter, in the module's order");
        let held = match self.held(record, param) {
            Ok(held) => held,
            Err(error) => {
                self.whole = Err(error);
                return;
            }
        };
        for (name, held) in held {
            let whole = self.whole(record, held);
            match (&mut self.whole, whole) {
                (Ok(all), Ok(data)) => {
                    all.insert(name, data);
                }
                (all @ Ok(_), Err(error)) => *all = Err(error),
                (Err(_), _) => {}
            }
        }
    }
}
