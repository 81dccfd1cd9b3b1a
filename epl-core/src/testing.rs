//! Helpers for tests of models and layers: ranks as threads under a mesh, and errors of tensors.

use std::collections::BTreeMap;

use burn::tensor::TensorData;

pub use crate::difference::{error_on_scale, relative_error};

use crate::config::Config;
use crate::error::Result;
use crate::launch::{Epl, launch};

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

/// The tensor with the largest [`relative_error`] among two sets by name; a missing name counts as infinite.
pub fn largest_error(a: &BTreeMap<String, TensorData>, b: &BTreeMap<String, TensorData>) -> (String, f64) {
    let names = a.keys().chain(b.keys());
    let errors = names.map(|name| match (a.get(name), b.get(name)) {
        (Some(a), Some(b)) => (name.clone(), relative_error(a, b)),
        _ => (name.clone(), f64::INFINITY),
    });
    errors.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
}
