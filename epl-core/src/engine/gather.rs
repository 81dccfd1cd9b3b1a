//! Whole tensors from the slices that the ranks hold.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Shape, Tensor, TensorData};
use epl_comm::shard_range;

use super::gradients::GradientStore;
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
        let mut whole = held;
        for cut in &record.cuts {
            let group = self.context.axis(cut.axis);
            let extent = record.global_shape[cut.dim];
            let sizes: Vec<usize> =
                (0..group.size()).map(|member| shard_range(extent, group.size(), member).len()).collect();
            whole = group.all_gather_uneven(whole, cut.dim, &sizes)?;
        }
        Ok(whole.into_data())
    }
}

impl ModuleVisitor for Gatherer<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let record = self.records.next().expect("a plan has a record for every parameter, in the module's order");
        let shaped = |flat: &Tensor<1>| flat.clone().reshape::<D, _>(Shape::from(record.shape()));
        let held: Vec<(String, Tensor<D>)> = match self.source {
            Source::Parameters => vec![(record.name.clone(), param.base().inner())],
            Source::Gradients(store) => {
                store.get(record.id).map(|flat| (record.name.clone(), shaped(flat))).into_iter().collect()
            }
            Source::Optimizer(fields) => fields
                .get(&record.id)
                .into_iter()
                .flatten()
                .filter(|(_, data)| data.shape().to_vec() == record.shape())
                .map(|(field, data)| {
                    let device = param.base().device().without_autodiff();
                    (format!("{}.{field}", record.name), Tensor::from_data(data.clone(), &device))
                })
                .collect(),
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
