//! Layers that remember something or mix types, most of them Burn's, and the segments that run them.

use crate::model::segment::Model;
use crate::model::stateful::{Remembers, STATISTICS, mixing, stateful};
use crate::params::ParamRecord;

/// Layers of Burn that draw, keep something from one forward to the next, or mix types in 16 bits.
#[derive(Clone, Debug)]
pub(crate) struct BurnLayers {
    /// The paths of those that draw from the generator.
    pub drawing: Vec<String>,
    /// By segment: whether one of these may run in it.
    pub draws: Vec<bool>,
    /// The paths of those that keep running statistics.
    pub batch_norms: Vec<String>,
    /// The numbers of the records of these statistics.
    pub statistics: Vec<usize>,
    /// The numbers of the records that are called as these are: also of `SyncBatchNorm`, whose replicas move theirs alike.
    pub running: Vec<usize>,
    /// The paths of those that mix types in 16 bits.
    pub mixing: Vec<String>,
    /// By segment: whether one of these may run in it.
    pub mixes: Vec<bool>,
}

impl BurnLayers {
    /// None, in so many segments.
    pub fn none(segments: usize) -> Self {
        Self {
            drawing: Vec::new(),
            draws: vec![false; segments],
            batch_norms: Vec::new(),
            statistics: Vec::new(),
            running: Vec::new(),
            mixing: Vec::new(),
            mixes: vec![false; segments],
        }
    }

    /// The same where of the records only these are left, in this order, with their new numbers.
    pub fn among(&self, left: &[usize]) -> Self {
        let among = |numbers: &[usize]| numbers.iter().filter_map(|number| left.binary_search(number).ok()).collect();
        Self { statistics: among(&self.statistics), running: among(&self.running), ..self.clone() }
    }

    /// Those of a model that has these records.
    pub fn of<M: Model>(model: &M, records: &[ParamRecord]) -> Self {
        let (drawing, norms): (Vec<_>, Vec<_>) =
            stateful(model).into_iter().partition(|(_, remembers)| *remembers == Remembers::Generator);
        let paths = |layers: Vec<(String, Remembers)>| layers.into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        let (drawing, batch_norms, mixing) = (paths(drawing), paths(norms), mixing(model));
        // A layer that is the model itself has no path.
        let layer_and_field =
            |number: &usize| records[*number].name.rsplit_once('.').unwrap_or(("", &records[*number].name));
        let running = (0..records.len()).filter(|number| STATISTICS.contains(&layer_and_field(number).1));
        let running: Vec<usize> = running.collect();
        let is_burns = |number: &usize| batch_norms.iter().any(|norm| norm == layer_and_field(number).0);
        let statistics = running.iter().copied().filter(is_burns).collect();
        let (draws, mixes) = (segments_with(model, records, &drawing), segments_with(model, records, &mixing));
        Self { drawing, draws, batch_norms, statistics, running, mixing, mixes }
    }
}

/// By segment: whether one of these layers may run in it: where its parameters are used, and of one without any, where the
/// model says; of one that a model is silent of nobody knows.
fn segments_with<M: Model>(model: &M, records: &[ParamRecord], layers: &[String]) -> Vec<bool> {
    let mut with = vec![false; model.segments()];
    for path in layers {
        let is_inside = |record: &&ParamRecord| {
            path.is_empty() || record.name.strip_prefix(&**path).is_some_and(|rest| rest.starts_with('.'))
        };
        let mut segments: Vec<usize> =
            records.iter().filter(is_inside).flat_map(|record| record.segments.clone()).collect();
        if segments.is_empty() {
            segments = model.segments_of(path);
            segments.retain(|segment| *segment < with.len());
        }
        match segments.is_empty() {
            true => with.fill(true),
            false => segments.into_iter().for_each(|segment| with[segment] = true),
        }
    }
    with
}
