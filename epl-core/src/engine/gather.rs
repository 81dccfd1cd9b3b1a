//! Whole tensors from the slices that the ranks hold.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use epl_comm::shard_range;

use super::gradients::GradientStore;
use crate::context::Context;
use crate::error::Result;
use crate::plan::{ParamRecord, Plan};

/// The whole parameters by path. Collective.
pub(crate) fn parameters<M: Module>(
    model: &M,
    plan: &Plan,
    context: &Context,
) -> Result<BTreeMap<String, TensorData>> {
    gather(model, plan, context, None)
}

/// The whole gradients by path; zeros where there is none. Collective.
pub(crate) fn gradients<M: Module>(
    model: &M,
    plan: &Plan,
    context: &Context,
    store: &GradientStore,
) -> Result<BTreeMap<String, TensorData>> {
    gather(model, plan, context, Some(store))
}

fn gather<M: Module>(
    model: &M,
    plan: &Plan,
    context: &Context,
    store: Option<&GradientStore>,
) -> Result<BTreeMap<String, TensorData>> {
    let mut gatherer = Gatherer { context, store, records: plan.records.iter(), whole: Ok(BTreeMap::new()) };
    model.visit(&mut gatherer);
    gatherer.whole
}

struct Gatherer<'a> {
    context: &'a Context,
    store: Option<&'a GradientStore>,
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
        let held = match self.store {
            None => Some(param.base().inner()),
            Some(store) => store.get(record.id).map(|flat| flat.clone().reshape(record.shape())),
        };
        let Some(held) = held else { return };
        let whole = self.whole(record, held);
        match (&mut self.whole, whole) {
            (Ok(all), Ok(data)) => {
                all.insert(record.name.clone(), data);
            }
            (all @ Ok(_), Err(error)) => *all = Err(error),
            (Err(_), _) => {}
        }
    }
}
