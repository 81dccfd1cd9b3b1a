//! Helpers for tests of models and layers: ranks as threads under a mesh, models in 16 bits, and errors of tensors.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData};

pub use crate::difference::{error_on_scale, relative_error};

use crate::config::Config;
use crate::context::Context;
use crate::error::Result;
use crate::launch::{Built, Epl, launch};
use crate::place::Place;
use crate::precision::HalfPrecision;
use crate::segment::Segmented;

/// A configuration with these sizes of the mesh and a fixed seed.
pub fn config(data: usize, tensor: usize, expert: usize) -> Config {
    let mut config = Config::default();
    config.dist.data_parallel_size = Some(data);
    config.dist.tensor_parallel_size = tensor;
    config.dist.expert_parallel_size = expert;
    config.train.seed = 42;
    config
}

/// Runs `f` on every rank of a mesh of `data` × `tensor` ranks, with `expert` dividing data.
///
/// # Panics
///
/// When a rank fails; the message names it.
pub fn run<T: Send>((data, tensor, expert): (usize, usize, usize), f: impl Fn(Epl) -> Result<T> + Sync) -> Vec<T> {
    launch(&config(data, tensor, expert), f).unwrap_or_else(|error| panic!("{error}"))
}

/// Builds a model, and the one that mixed precision runs in its place. Collective.
///
/// # Errors
///
/// As [`Epl::build`].
pub fn build_half<M: Segmented>(
    epl: &Epl,
    precision: HalfPrecision,
    mut model: impl FnMut(&Place) -> M,
) -> Result<(Built<M>, M)> {
    let mut declared = BTreeSet::new();
    let built = epl.build(|place| {
        let model = model(place);
        declared = full_precision(&model, place.context());
        model
    })?;
    let records = built.plan().records.iter();
    let stays: HashSet<ParamId> = records.filter(|r| declared.contains(&r.name)).map(|r| r.id).collect();
    let half = precision.model(built.model(), |id| stays.contains(&id));
    Ok((built, half))
}

/// The names of the parameters that their layers declared to stay in full precision.
fn full_precision<M: Module>(model: &M, context: &Context) -> BTreeSet<String> {
    struct Declared<'a>(&'a Context, Vec<String>, BTreeSet<String>);
    impl ModuleVisitor for Declared<'_> {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.1.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.1.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.is_full_precision(param.id) {
                self.2.insert(self.1.join("."));
            }
        }
    }
    let mut declared = Declared(context, Vec::new(), BTreeSet::new());
    model.visit(&mut declared);
    declared.2
}

/// The tensor with the largest [`relative_error`] among two sets by name; a missing name counts as infinite.
pub fn largest_error(a: &BTreeMap<String, TensorData>, b: &BTreeMap<String, TensorData>) -> (String, f64) {
    let names = a.keys().chain(b.keys());
    let errors = names.map(|name| match (a.get(name), b.get(name)) {
        (Some(a), Some(b)) => (name.clone(), relative_error(a, b)),
        _ => (name.clone(), f64::INFINITY),
    });
    errors.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
}
