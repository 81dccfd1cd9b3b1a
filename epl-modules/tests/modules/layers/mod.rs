//! A layer under any split of the tensor axis or of a batch, against one rank, and against Burn's own layer.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod against_burn;
pub(crate) mod batch_norm;
pub(crate) mod cases;
pub(crate) mod conv;
pub(crate) mod fused;
pub(crate) mod replicas;
pub(crate) mod run;
pub(crate) mod steps;

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use epl_core::testing::largest_error;

/// Named results: outputs and whole gradients.
pub(crate) type Outcome = BTreeMap<String, TensorData>;

/// Panics when any tensor of `found` is further than `limit` from the same of `expected`.
#[track_caller]
pub(crate) fn assert_close(what: &str, found: &Outcome, expected: &Outcome, limit: f64) {
    let (name, error) = largest_error(found, expected);
    assert!(error <= limit, "{what}: `{name}` is off by {error:e}, limit {limit:e}");
}
