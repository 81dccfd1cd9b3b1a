//! A model whose layers are divided in one way over tensor and expert ranks, with what its segments take.

use std::collections::BTreeMap;

use crate::cost::{Network, SegmentTime};
use crate::memory::Activations;
use crate::plan::builder::PlanBuilder;
use crate::simulate::ShapesOverRows;
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
    /// The same way, where some layers are whole on each tensor rank that take less so.
    pub with_whole_layers: Option<Box<Column>>,
    /// By segment, the first one that costs the same, but for its parameters.
    alike: Vec<usize>,
    /// By segment, bytes of trained parameters of which each replica has one, and of those that experts' ranks divide.
    parameters: Vec<[f64; 2]>,
}

/// So many kinds of segments are told apart; more are each taken for one of its own.
const KINDS: usize = 64;

/// What one segment takes and needs for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SegmentCost {
    /// Seconds of its forward, with its collectives, and without.
    pub forward: f64,
    pub again: f64,
    /// Seconds of its backward, with its collectives; where a layout is known, also with what it adds to gradients that are there.
    pub backward: f64,
    /// Bytes that are stored between the two, and that are where it is run again.
    pub stored: f64,
    pub kept: f64,
    /// Bytes that its backward needs beside.
    pub working: f64,
    /// Bytes of trained parameters of which each replica has one, and of those that experts' ranks divide.
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
    /// Of segments that take so long, which call and send so much, and store so much.
    pub fn new(
        builder: PlanBuilder,
        segments: Vec<SegmentTime>,
        shapes: ShapesOverRows,
        activations: Option<Activations>,
    ) -> Self {
        let stored = |segment: usize| activations.as_ref().map(|known| &known.segments[segment]);
        let mut kinds: Vec<usize> = Vec::new();
        let alike = (0..segments.len()).map(|segment| {
            let is_alike = |kind: &&usize| {
                segments[**kind] == segments[segment]
                    && stored(**kind) == stored(segment)
                    && shapes.call_alike(**kind, segment)
            };
            let known = kinds.iter().find(is_alike).copied();
            kinds.extend((known.is_none() && kinds.len() < KINDS).then_some(segment));
            known.unwrap_or(segment)
        });
        let alike = alike.collect();
        let mut parameters = vec![[0.0; 2]; segments.len()];
        for record in builder.trained() {
            let is_expert = record.reduced_over() == Axis::ExpertData;
            let Some(bytes) = record.segments.first().and_then(|segment| parameters.get_mut(*segment)) else {
                continue;
            };
            bytes[usize::from(is_expert)] += (record.numel() * record.dtype.size()) as f64;
        }
        Self { builder, segments, shapes, activations, with_whole_layers: None, alike, parameters }
    }

    /// The layers that are whole though they could be divided, as an option names them.
    pub fn whole_layers(&self) -> Option<&[String]> {
        self.builder.config.dist.whole_layers.as_deref()
    }

    /// By segment, for micro-batches of so many rows, where a rank of a mesh calls over this network, or its calls are not counted.
    pub fn costs(&self, rows: usize, calls: Option<(&Mesh, usize, &Network)>) -> Vec<SegmentCost> {
        let mut costs = self.of_kinds(|segment| self.cost(segment, rows, calls));
        costs.iter_mut().zip(&self.parameters).for_each(|(cost, parameters)| cost.parameters = *parameters);
        costs
    }

    /// By segment, seconds of the collectives of its forward and of its backward, as a rank of a mesh calls them.
    pub fn layers(&self, rows: usize, calls: (&Mesh, usize, &Network)) -> Vec<[f64; 2]> {
        self.of_kinds(|segment| self.layer(segment, rows, calls))
    }

    /// By segment, what is asked of the first one of its kind alone.
    fn of_kinds<T: Copy>(&self, of: impl Fn(usize) -> T) -> Vec<T> {
        let mut all: Vec<T> = Vec::with_capacity(self.alike.len());
        for (segment, alike) in self.alike.iter().enumerate() {
            all.push(if *alike < segment { all[*alike] } else { of(segment) });
        }
        all
    }

    fn layer(&self, segment: usize, rows: usize, calls: (&Mesh, usize, &Network)) -> [f64; 2] {
        seconds_of_calls(&self.shapes, segment, rows, calls)
    }

    /// One of them, without its parameters.
    fn cost(&self, segment: usize, rows: usize, calls: Option<(&Mesh, usize, &Network)>) -> SegmentCost {
        let (time, layer) = (&self.segments[segment], calls.map(|calls| self.layer(segment, rows, calls)));
        let [forward, backward] = layer.unwrap_or_default();
        let cost = SegmentCost {
            // One forward more, without a graph: the one that has it is made in backward.
            again: time.untracked.at(rows as f64),
            forward: time.forward.at(rows as f64) + forward,
            backward: time.backward.at(rows as f64) + backward,
            ..SegmentCost::default()
        };
        match self.activations.as_ref().and_then(|known| known.segments[segment].as_ref()) {
            None => cost,
            Some(bytes) => SegmentCost {
                stored: bytes.stored.at(rows).max(0.0),
                kept: (bytes.carry.at(rows) + bytes.results.at(rows)).max(0.0),
                working: bytes.working.at(rows).max(0.0),
                ..cost
            },
        }
    }
}

/// Seconds of the collectives of a segment's forward and of its backward, as a rank of a mesh calls them for so many rows.
pub(crate) fn seconds_of_calls(
    shapes: &ShapesOverRows,
    segment: usize,
    rows: usize,
    (mesh, rank, network): (&Mesh, usize, &Network),
) -> [f64; 2] {
    let calls = shapes.calls_of(segment, rows);
    [calls.forward, calls.backward].map(|calls| calls.iter().map(|call| network.seconds_of(call, mesh, rank)).sum())
}
