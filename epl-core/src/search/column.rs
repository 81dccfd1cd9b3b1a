//! A model whose layers are divided in one way over tensor and expert ranks, with what its segments take.

use std::collections::BTreeMap;

use crate::cost::{Network, SegmentTime};
use crate::memory::Activations;
use crate::plan::builder::PlanBuilder;
use crate::simulate::{Called, ShapesOverRows};
use crate::topology::cluster::{Axis, Mesh};

/// The ways in which layers may be divided, by tensor and expert ranks: what they come to, or why they cannot be.
pub(crate) type Columns = BTreeMap<(usize, usize), Result<Column, String>>;

/// One way.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// Of the first rank, laid out for the optimizer.
    pub builder: PlanBuilder,
    /// By segment, on one device.
    pub segments: Vec<SegmentTime>,
    pub shapes: ShapesOverRows,
    /// None where they are not counted.
    pub activations: Option<Activations>,
}

/// What one segment takes and needs for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SegmentCost {
    /// Seconds of its forward, with its collectives, and without.
    pub forward: f64,
    pub again: f64,
    /// Seconds of its backward, with its collectives.
    pub backward: f64,
    /// Bytes that are stored between the two, and that are where it is run again.
    pub stored: f64,
    pub kept: f64,
    /// Bytes that its backward needs beside.
    pub working: f64,
    /// Bytes of parameters of which each replica has one, and of those that experts' ranks divide.
    pub parameters: [f64; 2],
}

impl SegmentCost {
    /// Seconds of both ways.
    pub fn seconds(&self) -> f64 {
        self.forward + self.backward
    }

    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        self.with(other, |one, other| one + other)
    }

    /// What it has more than another one.
    pub fn less(&self, other: &Self) -> Self {
        self.with(other, |one, other| one - other)
    }

    fn with(&self, other: &Self, both: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            forward: both(self.forward, other.forward),
            again: both(self.again, other.again),
            backward: both(self.backward, other.backward),
            stored: both(self.stored, other.stored),
            kept: both(self.kept, other.kept),
            working: both(self.working, other.working),
            parameters: [0, 1].map(|of| both(self.parameters[of], other.parameters[of])),
        }
    }
}

impl Column {
    /// By segment, for micro-batches of so many rows, in a mesh over this network.
    pub fn costs(&self, rows: usize, mesh: &Mesh, network: &Network) -> Vec<SegmentCost> {
        let shapes = self.shapes.at(&[rows]);
        let seconds = |call: &Called| network.seconds_of(call, mesh, mesh.first());
        let mut costs: Vec<SegmentCost> = (self.segments.iter().enumerate())
            .map(|(segment, time)| {
                let calls = shapes.calls(0, segment);
                let again = time.forward.at(rows as f64);
                SegmentCost {
                    again,
                    forward: again + calls.forward.iter().map(seconds).sum::<f64>(),
                    backward: time.backward.at(rows as f64) + calls.backward.iter().map(seconds).sum::<f64>(),
                    ..SegmentCost::default()
                }
            })
            .collect();
        let known = self.activations.iter().flat_map(|known| known.segments.iter().enumerate());
        for (segment, bytes) in known.filter_map(|(segment, bytes)| bytes.as_ref().map(|bytes| (segment, bytes))) {
            let cost = &mut costs[segment];
            cost.stored = bytes.stored.at(rows).max(0.0);
            cost.kept = (bytes.carry.at(rows) + bytes.results.at(rows)).max(0.0);
            cost.working = bytes.working.at(rows).max(0.0);
        }
        for record in self.builder.parameters().iter().filter(|record| record.trainable) {
            let is_expert = record.reduced_over() == Axis::ExpertData;
            let Some(cost) = record.segments.first().and_then(|segment| costs.get_mut(*segment)) else { continue };
            cost.parameters[usize::from(is_expert)] += (record.numel() * record.dtype.size()) as f64;
        }
        costs
    }
}
