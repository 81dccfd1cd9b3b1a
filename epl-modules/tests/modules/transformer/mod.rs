//! Layers of a transformer: under any layout against one rank, against plain tensors, and token by token.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod case;
pub(crate) mod generation;
pub(crate) mod layout;
pub(crate) mod net;
pub(crate) mod reference;

use std::collections::BTreeMap;

use burn::tensor::{Tensor, TensorData};
use epl_core::testing::largest_error;

/// Named results: hidden states of samples, losses, whole gradients.
pub(crate) type Outcome = BTreeMap<String, TensorData>;

/// Panics when any tensor of `found` is further than `limit` from the same of `expected`.
#[track_caller]
pub(crate) fn assert_close(what: &str, found: &Outcome, expected: &Outcome, limit: f64) {
    let (name, error) = largest_error(found, expected);
    assert!(error <= limit, "{what}: `{name}` is off by {error:e}, limit {limit:e}");
}

/// To f64 on the host.
pub(crate) fn host<const D: usize>(x: Tensor<D>) -> TensorData {
    let shape = x.dims();
    TensorData::new(x.into_data().iter::<f64>().collect::<Vec<_>>(), shape)
}

/// Numbers in `[-1, 1)` without a pattern.
pub(crate) fn noise(stream: usize, sample: usize, position: usize, element: usize) -> f64 {
    let mixed = stream as f64 * 3.17 + sample as f64 * 12.9898 + position as f64 * 78.233 + element as f64 * 37.719;
    2.0 * (mixed.sin() * 43_758.545_3).rem_euclid(1.0) - 1.0
}
