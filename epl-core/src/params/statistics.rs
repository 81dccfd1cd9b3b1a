//! Running statistics of Burn's layers, which a forward moves.
//!
//! Such a layer puts its update aside, and takes it over when it reads the statistics again. Who reads or writes them from
//! outside lets it take over first: else it would read old ones, and what it writes would be lost.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::Tensor;

use super::ParamRecord;
use super::store::{fill, read};
use crate::model::stateful::take_over;

/// Running statistics of a model, flat, by the numbers of their records.
#[derive(Clone, Debug)]
pub(crate) struct RunningStatistics(pub BTreeMap<usize, Tensor<1>>);

impl RunningStatistics {
    /// Those of a model that have these numbers.
    pub fn of<M: Module>(model: &M, records: &[ParamRecord], numbers: &[usize]) -> Self {
        if numbers.is_empty() {
            return Self(BTreeMap::new());
        }
        take_over(model);
        Self(read(model, records, numbers).into_iter().collect())
    }

    /// Gives them to the model, and to all clones of it, which share theirs.
    pub fn put_into<M: Module>(mut self, model: &M, records: &[ParamRecord]) {
        if !self.0.is_empty() {
            take_over(model);
            drop(fill(model.clone(), records, true, |number, _| self.0.remove(&number)));
        }
    }
}
