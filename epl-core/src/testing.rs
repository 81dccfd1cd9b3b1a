//! Helpers for tests of models and layers: ranks as threads under a mesh, models in 16 bits, and errors of tensors.

use std::collections::BTreeMap;

use burn::tensor::TensorData;

pub use crate::engine::difference::{error_on_scale, relative_error};

use crate::config::{AmpLevel, Config, HalfDtype};
use crate::error::Result;
use crate::launch::{Epl, LaidOutModel, launch};
use crate::model::segment::Model;
use crate::params::store::fill;

/// A configuration with these sizes of the mesh and a fixed seed.
pub fn config(data: usize, tensor: usize, expert: usize) -> Config {
    let mut config = Config::default();
    config.dist.data_parallel_size = Some(data);
    config.dist.tensor_parallel_size = tensor;
    config.dist.expert_parallel_size = expert;
    config.train.seed = 42;
    config
}

/// The same in mixed precision.
pub fn in_half(mut config: Config, dtype: HalfDtype) -> Config {
    (config.amp.level, config.amp.dtype) = (AmpLevel::O1, dtype);
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

/// The model as the segments of a run in mixed precision see it: with leaves in 16 bits in place of the parameters that
/// are cast, where its configuration says so.
pub fn half_model<M: Model>(built: &LaidOutModel<M>) -> M {
    let plan = built.plan();
    fill(built.model().clone(), &plan.params.records, true, |number, own| {
        let half = plan.half.filter(|_| plan.params.records[number].half)?;
        Some(own().cast(half.dtype()))
    })
}

/// ‖a − b‖ ÷ ‖b‖ of all tensors of two sets together, which must have the same names.
///
/// # Panics
///
/// When `a` has not all that `b` has.
pub fn error_together(a: &BTreeMap<String, TensorData>, b: &BTreeMap<String, TensorData>) -> f64 {
    let (mut off, mut all) = (0.0, 0.0);
    for (name, b) in b {
        let pairs = a[name].iter::<f64>().zip(b.iter::<f64>());
        pairs.for_each(|(a, b)| (off, all) = (off + (a - b).powi(2), all + b.powi(2)));
    }
    (off / all).sqrt()
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
