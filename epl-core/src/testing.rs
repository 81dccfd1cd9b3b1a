//! Helpers for tests of models and layers: ranks as threads under a mesh, and errors of tensors.

use std::collections::BTreeMap;

use burn::tensor::TensorData;

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

/// max |a − b| ÷ max |b|: the error of a tensor. A tensor of zeros has no scale: then max |a − b|.
pub fn relative_error(a: &TensorData, b: &TensorData) -> f64 {
    error_on_scale(a, b, b)
}

/// max |a − b| ÷ max |s|, for a tensor that is zero up to rounding, beside one of its kind that is not. The gradient of
/// the keys' biases in attention is such a one: a bias shifts all scores of a query alike.
pub fn error_on_scale(a: &TensorData, b: &TensorData, s: &TensorData) -> f64 {
    if a.shape() != b.shape() {
        return f64::INFINITY;
    }
    let mut difference = 0.0_f64;
    let scale = s.iter::<f64>().fold(0.0_f64, |scale, s| scale.max(s.abs()));
    for (a, b) in a.iter::<f64>().zip(b.iter::<f64>()) {
        // `max` would drop a NaN.
        if !(a - b).is_finite() {
            return f64::INFINITY;
        }
        difference = difference.max((a - b).abs());
    }
    if scale == 0.0 { difference } else { difference / scale }
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
