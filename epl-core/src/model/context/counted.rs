//! What layers count, by the handle that they hold.

use std::collections::BTreeMap;

use burn::tensor::Tensor;

use super::Context;
use super::metrics::NotedMetrics;
use super::moment::needs_context;

impl Context {
    /// Declares a metric of `len` values, so that every rank reduces the same set of them.
    pub fn declare_metric(&self, name: &str, len: usize) {
        self.state().metrics.sums.insert(name.to_string(), vec![0.0; len]);
    }

    /// Adds to a declared metric. Nothing is added for a stand-in micro-batch.
    ///
    /// # Panics
    ///
    /// When the metric was not declared with this length: a fault of the layer.
    pub fn add_metric(&self, name: &str, values: &[f64]) {
        if self.counts(name, values.len()) {
            self.state().metrics.add(name, values);
        }
    }

    /// As [`add_metric`](Self::add_metric), without waiting for the device that has the values: they are read with the losses,
    /// at the end of the step.
    ///
    /// # Panics
    ///
    /// As there.
    pub fn note_metric(&self, name: &str, values: Tensor<1>) {
        if self.counts(name, values.dims()[0]) {
            let noted = &mut self.state().metrics.noted;
            let sum = match noted.remove(name) {
                Some(sum) => sum + values,
                None => values,
            };
            noted.insert(name.to_string(), sum);
        }
    }

    /// How many values all declared metrics have.
    pub(crate) fn metric_lengths(&self) -> usize {
        self.state().metrics.sums.values().map(Vec::len).sum()
    }

    /// Whether what is counted now is added, to a metric that must have `len` values.
    fn counts(&self, name: &str, len: usize) -> bool {
        needs_context();
        let state = self.state();
        if state.pass.empty || state.replay {
            return false;
        }
        let sums = state.metrics.sums.get(name).expect("a metric is declared before it is added to");
        assert_eq!(sums.len(), len, "metric `{name}` was declared with another length");
        true
    }

    /// Takes what is still to be read.
    pub(crate) fn take_noted_metrics(&self) -> NotedMetrics {
        core::mem::take(&mut self.state().metrics.noted)
    }

    /// Adds what was noted and has been read: the values of all, one after the other.
    pub(crate) fn settle_metrics(&self, noted: NotedMetrics, values: Vec<f64>) {
        let (mut state, mut values) = (self.state(), &values[..]);
        for (name, tensor) in noted {
            let (own, others) = values.split_at(tensor.dims()[0]);
            state.metrics.add(&name, own);
            values = others;
        }
    }

    /// Takes the sums of all metrics of this rank and sets them to zero.
    pub fn take_metrics(&self) -> BTreeMap<String, Vec<f64>> {
        let noted = self.take_noted_metrics();
        if !noted.is_empty() {
            let values = self.read_numbers(noted.values().cloned().collect());
            self.settle_metrics(noted, values);
        }
        let mut state = self.state();
        let taken = state.metrics.sums.clone();
        state.metrics.sums.values_mut().for_each(|values| values.fill(0.0));
        taken
    }
}
