//! What layers declare while a model is built, for its plan to read.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::ParamId;

use crate::model::decay::AverageDecay;
use crate::topology::cluster::Axis;
use crate::topology::scopes::Scopes;

/// How a layer asked for a parameter to be cut: its whole shape, and (axis, dim) pairs.
#[derive(Clone, Debug)]
pub(crate) struct Sharding {
    /// Where in the model it was declared.
    pub path: String,
    pub shape: Vec<usize>,
    pub cuts: Vec<(Axis, usize)>,
}

/// The declarations of one model's layers. All places in a model share them; parameters are known by the identifiers with
/// which their layers were made, as a plan gives them other ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct BuildContext(Arc<Mutex<Declared>>);

#[derive(Debug, Default)]
struct Declared {
    /// How many layers there are of a path.
    layers: HashMap<String, u64>,
    shardings: HashMap<ParamId, Sharding>,
    full_precision: HashSet<ParamId>,
    averages: HashMap<ParamId, (ParamId, AverageDecay)>,
    /// What is taken over all rows of a micro-batch.
    over_micro_batch: BTreeSet<&'static str>,
    /// What is taken over the rows of one replica, by itself.
    over_replica: BTreeSet<&'static str>,
    /// The paths of layers that are divided over the tensor axis, or whole as an option says so.
    self_contained: BTreeSet<String>,
    scopes: Scopes,
}

impl BuildContext {
    /// A number that no other layer of the model has, the same in every layout.
    pub fn layer_number(&self, path: &str) -> u64 {
        let mut declared = self.declared();
        let count = declared.layers.entry(path.to_string()).or_insert(0);
        *count += 1;
        *count - 1
    }

    /// Declares how a parameter is cut.
    pub fn declare_sharding(&self, id: ParamId, sharding: Sharding) {
        self.declared().shardings.insert(id, sharding);
    }

    /// How a parameter was declared to be cut.
    pub fn sharding(&self, id: ParamId) -> Option<Sharding> {
        self.declared().shardings.get(&id).cloned()
    }

    /// Whether a parameter was declared to be cut over an axis.
    pub fn is_cut_over(&self, id: ParamId, axis: Axis) -> bool {
        self.sharding(id).is_some_and(|sharding| sharding.cuts.iter().any(|(over, _)| *over == axis))
    }

    /// Forgets how parameters are cut: a plan has read it.
    pub fn take_shardings(&self) -> HashMap<ParamId, Sharding> {
        core::mem::take(&mut self.declared().shardings)
    }

    /// Declares that mixed precision leaves a parameter as it is.
    pub fn keep_full_precision(&self, id: ParamId) {
        self.declared().full_precision.insert(id);
    }

    /// Whether a parameter was declared so.
    pub fn is_full_precision(&self, id: ParamId) -> bool {
        self.declared().full_precision.contains(&id)
    }

    /// Declares that a parameter is a moving average of another one.
    pub fn declare_average(&self, id: ParamId, of: ParamId, decay: AverageDecay) {
        self.declared().averages.insert(id, (of, decay));
    }

    /// What a parameter was declared to be a moving average of.
    pub fn average(&self, id: ParamId) -> Option<(ParamId, AverageDecay)> {
        self.declared().averages.get(&id).copied()
    }

    /// Declares something that is taken over all rows of a micro-batch.
    pub fn declare_over_micro_batch(&self, what: &'static str) {
        self.declared().over_micro_batch.insert(what);
    }

    /// What was declared so.
    pub fn over_micro_batch(&self) -> Vec<&'static str> {
        self.declared().over_micro_batch.iter().copied().collect()
    }

    /// Declares something that is taken over the rows that one replica has of a micro-batch.
    pub fn declare_over_replica(&self, what: &'static str) {
        let mut declared = self.declared();
        declared.over_micro_batch.insert(what);
        declared.over_replica.insert(what);
    }

    /// What was declared so.
    pub fn over_replica(&self) -> Vec<&'static str> {
        self.declared().over_replica.iter().copied().collect()
    }

    /// Declares that the layer at a path may be divided over the tensor axis or be whole.
    pub fn declare_self_contained(&self, path: &str) {
        self.declared().self_contained.insert(path.to_string());
    }

    /// The paths of the layers that were declared so, in their order.
    pub fn self_contained(&self) -> Vec<String> {
        self.declared().self_contained.iter().cloned().collect()
    }

    /// What the scopes around the model's parts said so far.
    pub fn scopes<T>(&self, f: impl FnOnce(&mut Scopes) -> T) -> T {
        f(&mut self.declared().scopes)
    }

    /// Forgets all declarations: another model is about to be made.
    pub fn forget(&self) {
        *self.declared() = Declared::default();
    }

    fn declared(&self) -> MutexGuard<'_, Declared> {
        // No declaration is half-made when a panic ends it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
