//! What a simulation of a step asks.

use std::cell::RefCell;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::devices::DeviceTraits;
use super::line::Line;
use super::network::Network;
use crate::memory::{Tier, Tiers};
use crate::params::{Form, ParamRecord};
use crate::plan::Plan;
use crate::schedule::run_of;
use crate::simulate::{Called, Costs, Purpose, RunKind};

/// What a segment takes on one device, without its collectives: seconds over the rows of a micro-batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SegmentTime {
    /// Its forward.
    pub forward: Line,
    /// Its backward.
    pub backward: Line,
    /// Its forward without a graph, where it is run again.
    pub untracked: Line,
}

impl SegmentTime {
    /// All of them.
    pub fn lines(&self) -> [&Line; 3] {
        [&self.forward, &self.backward, &self.untracked]
    }
}

/// What a device takes for what is not of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rates {
    /// Seconds of the optimizer for an element.
    pub update: f64,
    /// The same where the optimizer's state lies in host memory, and so the update runs there, with what it brings there and back.
    #[serde(default)]
    pub host_updates: HostUpdates,
    /// Seconds of the optimizer for a parameter, beside those for its elements.
    #[serde(default)]
    pub parameter: f64,
    /// Seconds of the norm for an element of a gradient.
    #[serde(default)]
    pub norm: f64,
    /// Seconds to read and write a byte once.
    pub copy: f64,
    /// The share of a started collective that the rank's own computing loses: 1 where one core does both.
    pub lost: f64,
    /// How much less a rank takes to compute, as a part, while no other one of its host does: they share its memory.
    #[serde(default)]
    pub spared: f64,
}

/// Seconds of an optimizer in host memory for an element; none where nobody measured it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostUpdates {
    /// Where its state alone lies there.
    pub of_state: Option<f64>,
    /// Where gradients or parameters do, too.
    pub of_more: Option<f64>,
}

impl Rates {
    /// Seconds of the optimizer for an element, where parameters, gradients and state lie there, on a device whose memory is so many
    /// times as fast as the slowest one's. Files are taken to be in memory.
    pub fn update_at(&self, tiers: Tiers, memory: f64) -> f64 {
        self.host_update(tiers).unwrap_or(self.update / memory)
    }

    /// The same where the state lies in host memory or in files, as it was measured.
    pub fn host_update(&self, tiers: Tiers) -> Option<f64> {
        match (tiers.state, tiers.puts_away_more_than_state()) {
            (Tier::Device, _) => None,
            (_, false) => self.host_updates.of_state,
            (_, true) => self.host_updates.of_more,
        }
    }
}

/// A rank whose step is simulated.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedRank {
    /// Its number.
    pub rank: usize,
    /// What it is together with the ranks that share its layers.
    pub device: DeviceTraits,
    /// The number that those ranks have in common whose calls take as long.
    pub links: usize,
    /// Rows of each of its micro-batches.
    pub rows: Vec<usize>,
}

/// Seconds of the collectives of each segment, of its forward and of its backward: by links and by the rows of a micro-batch.
pub(crate) type LayerSeconds = BTreeMap<(usize, usize), Vec<[f64; 2]>>;

/// What the things of a step take on some ranks.
#[derive(Clone, Debug)]
pub(crate) struct StepCosts<'a> {
    plans: &'a [Plan],
    ranks: &'a [SimulatedRank],
    segments: &'a [SegmentTime],
    /// What collectives of segments take where the list has none.
    layers: &'a LayerSeconds,
    network: &'a Network,
    rates: Rates,
    /// By plan and segment: the bytes of the gradients of its parameters.
    gradients: Vec<Vec<u64>>,
    /// By rank: what was asked already.
    asked: RefCell<Vec<FxHashMap<Called, f64>>>,
}

impl<'a> StepCosts<'a> {
    /// Of the `ranks` that have these `plans`, where the segments take so long on the slowest device, and the collectives of `layers`.
    pub fn new(
        (plans, ranks): (&'a [Plan], &'a [SimulatedRank]),
        segments: &'a [SegmentTime],
        layers: &'a LayerSeconds,
        (network, rates): (&'a Network, Rates),
    ) -> Self {
        let bytes =
            |record: &ParamRecord| (record.held && record.trainable).then(|| record.numel() * record.dtype.size());
        let gradients = plans.iter().map(|plan| plan.segment_bytes(bytes)).collect();
        let asked = RefCell::new(vec![FxHashMap::default(); plans.len()]);
        Self { plans, ranks, segments, layers, network, rates, gradients, asked }
    }

    /// Seconds of a collective, by itself.
    fn seconds(&self, rank: usize, call: &Called) -> f64 {
        let asked = &mut self.asked.borrow_mut()[rank];
        if let Some(seconds) = asked.get(call) {
            return *seconds;
        }
        let seconds = self.network.seconds_of(call, &self.plans[rank].mesh, self.ranks[rank].rank);
        asked.insert(call.clone(), seconds);
        seconds
    }

    /// Seconds in which a rank reads and writes a byte once.
    fn copy(&self, rank: usize) -> f64 {
        self.rates.copy / self.ranks[rank].device.memory
    }
}

impl Costs for StepCosts<'_> {
    fn run(&self, rank: usize, kind: RunKind, micro_batch: usize, segment: usize) -> f64 {
        let SimulatedRank { rows, device, links, .. } = &self.ranks[rank];
        let layers = self.layers.get(&(*links, rows[micro_batch]));
        let [forward, backward] = layers.map_or([0.0; 2], |layers| layers[segment]);
        let on_device = |line: &Line| line.at(rows[micro_batch] as f64) / device.compute;
        match kind {
            RunKind::Forward => {
                let SegmentTime { forward: tracked, untracked, .. } = &self.segments[segment];
                let is_again = run_of(&self.plans[rank].recompute, segment).is_some();
                on_device(if is_again { untracked } else { tracked }) + forward
            }
            // Its collectives give what they gave.
            RunKind::Recompute => on_device(&self.segments[segment].forward),
            RunKind::Backward => {
                // Gradients of later micro-batches are added to those that are there.
                let added = if micro_batch == 0 { 0 } else { self.gradients[rank][segment] };
                on_device(&self.segments[segment].backward) + backward + self.copy(rank) * added as f64
            }
        }
    }

    fn call(&self, rank: usize, call: &Called, is_started: bool) -> f64 {
        let beside = if is_started { 1.0 - self.rates.lost } else { 1.0 };
        beside * self.seconds(rank, call)
    }

    fn start(&self, rank: usize, purpose: Purpose, call: &Called) -> f64 {
        let flat = match purpose {
            Purpose::Bucket(_) => self.copy(rank) * call.bytes() as f64,
            _ => 0.0,
        };
        flat + self.rates.lost * self.seconds(rank, call)
    }

    fn norm(&self, rank: usize) -> f64 {
        let counted = self.plans[rank].params.records.iter().filter(|record| record.counted && record.trainable);
        let elements: usize = counted.map(|record| record.own_range().len()).sum();
        self.rates.norm / self.ranks[rank].device.memory * elements as f64
    }

    fn update(&self, rank: usize, unit: Option<usize>) -> f64 {
        let table = &self.plans[rank].params;
        let in_model = || table.trained().filter(|unit| unit.residency.update == Form::Model);
        // What is flat is updated as one.
        let parameters = if unit.is_some() { 1 } else { in_model().map(|unit| unit.members.len()).sum() };
        let (elements, tiers, moved) = match unit.and_then(|unit| table.trained().nth(unit)) {
            Some(unit) => {
                let (own, tiers) = (unit.own_len() * unit.dtype.size(), unit.residency.tiers());
                let moved = match (self.rates.host_update(tiers), unit.residency.is_gathered()) {
                    // What lies flat is taken out of the model, and put back.
                    (None, _) => own + unit.bytes(),
                    // What is measured has the rank's own part.
                    (Some(_), false) => unit.bytes().saturating_sub(own),
                    (Some(_), true) => 0,
                };
                (unit.own_len(), tiers, moved)
            }
            None => (in_model().map(|unit| unit.numel).sum(), Tiers::all(Tier::Device), 0),
        };
        let device = &self.ranks[rank].device;
        let fixed = self.rates.parameter * parameters as f64;
        fixed + self.rates.update_at(tiers, device.memory) * elements as f64 + self.copy(rank) * moved as f64
    }
}
