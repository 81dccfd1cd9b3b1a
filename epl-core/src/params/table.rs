//! The records of a model's parameters, and the units in which they travel and lie.

use std::collections::{BTreeSet, HashSet};

use super::{Bucket, Form, ParamRecord};
use crate::topology::cluster::Axis;

/// What is known of the parameters of a rank's model.
#[derive(Clone, Debug, Default)]
pub struct ParamTable {
    /// One record per parameter, in the order in which the module lists them.
    pub records: Vec<ParamRecord>,
    /// The reductions of a step, in the order in which they start.
    pub buckets: Vec<Bucket>,
    /// Those of gradients that are first summed over the stages that share a parameter, at the end of the step.
    pub tied: Vec<Bucket>,
    /// What is gathered as the buckets are, and has no gradient.
    pub frozen: Vec<Bucket>,
}

impl ParamTable {
    /// The units that have gradients; the first of them are the buckets.
    pub fn trained(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().chain(&self.tied)
    }

    /// What is reduced, gathered or put away as one: the buckets, the tied ones, the frozen ones.
    pub fn units(&self) -> impl Iterator<Item = &Bucket> {
        self.trained().chain(&self.frozen)
    }

    /// The same, to be changed.
    pub(crate) fn units_mut(&mut self) -> impl Iterator<Item = &mut Bucket> {
        self.buckets.iter_mut().chain(&mut self.tied).chain(&mut self.frozen)
    }

    /// The unit of this number.
    pub(crate) fn unit(&self, number: usize) -> &Bucket {
        self.units().nth(number).expect("there is a unit of this number")
    }

    /// The units that are gathered for the segments that use them, with their numbers.
    pub(crate) fn gathered(&self) -> impl Iterator<Item = (usize, &Bucket)> {
        self.units().enumerate().filter(|(_, unit)| unit.residency.is_gathered())
    }

    /// Those that are gathered for this segment.
    pub(crate) fn gathered_for(&self, segment: usize) -> impl Iterator<Item = (usize, &Bucket)> {
        let uses = move |member: &usize| self.records[*member].segments.contains(&segment);
        self.gathered().filter(move |(_, unit)| unit.members.iter().any(uses))
    }

    /// Whether any unit is gathered for the segments that use it, so that the model has the parameters of one at a time.
    pub(crate) fn gathers(&self) -> bool {
        self.gathered().next().is_some()
    }

    /// The numbers of the records of which a rank keeps a shard, and not the whole.
    pub(crate) fn sharded(&self) -> HashSet<usize> {
        let sharded = self.gathered().filter(|(_, unit)| unit.residency.is_sharded());
        sharded.flat_map(|(_, unit)| unit.members.iter().copied()).collect()
    }

    /// The axes over which ranks have different parts of units, which are put together.
    pub(crate) fn divided_axes(&self) -> BTreeSet<Axis> {
        self.units().filter(|unit| !unit.shards.is_empty()).map(|unit| unit.axis).collect()
    }

    /// The numbers of the records that the optimizer is given one by one, in the model, in the module's order.
    pub(crate) fn updated_in_model(&self) -> BTreeSet<usize> {
        let units = self.trained().filter(|unit| unit.residency.update == Form::Model);
        units.flat_map(|unit| unit.members.iter().copied()).collect()
    }

    /// The numbers of the records of which the optimizer is given flat parts.
    pub(crate) fn updated_in_shards(&self) -> BTreeSet<usize> {
        let units = self.trained().filter(|unit| matches!(unit.residency.update, Form::Shards(_)));
        units.flat_map(|unit| unit.members.iter().copied()).collect()
    }

    /// The record of the parameter with this path.
    pub fn record(&self, name: &str) -> Option<&ParamRecord> {
        self.records.iter().find(|record| record.name == name)
    }
}
