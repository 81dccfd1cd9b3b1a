//! A mixture of experts under any layout, against one rank and against a dense reference.

pub(crate) mod case;
pub(crate) mod layout;
pub(crate) mod reference;

use std::collections::BTreeMap;

use burn::tensor::TensorData;
use epl_core::testing::largest_error;

/// Named results: outputs, losses, whole gradients, counts.
pub(crate) type Outcome = BTreeMap<String, TensorData>;

/// Panics when any tensor of `found` is further than `limit` from the same of `expected`.
pub(crate) fn assert_close(what: &str, found: &Outcome, expected: &Outcome, limit: f64) {
    let (name, error) = largest_error(found, expected);
    assert!(error <= limit, "{what}: `{name}` is off by {error:e}");
}

/// A tensor of numbers on the host.
pub(crate) fn array(values: Vec<f64>, shape: &[usize]) -> TensorData {
    TensorData::new(values, shape.to_vec())
}
