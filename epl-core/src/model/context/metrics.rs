//! What layers count, summed over a step.

use std::collections::BTreeMap;

use burn::tensor::Tensor;

/// The sums of one rank.
#[derive(Default)]
pub(super) struct Metrics {
    /// Those that are declared.
    pub sums: BTreeMap<String, Vec<f64>>,
    /// What is on a device, still to be read and added.
    pub noted: NotedMetrics,
}

/// Sums on a device, by name.
pub(crate) type NotedMetrics = BTreeMap<String, Tensor<1>>;

impl Metrics {
    pub fn add(&mut self, name: &str, values: &[f64]) {
        let sums = self.sums.get_mut(name).into_iter().flatten();
        sums.zip(values).for_each(|(sum, value)| *sum += value);
    }
}
