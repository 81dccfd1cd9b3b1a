//! The plan of a rank.

use std::ops::Range;
use std::sync::Arc;

use super::burn_layers::BurnLayers;
use super::finding::SplitFinding;
use super::order::Order;
use super::settings::EngineSettings;
use super::units::{parks, reduces_each};

use crate::config::ZeroLevel;
use crate::error::{Error, Result};
use crate::memory::{Tier, Tiers};
use crate::model::carry::Carry;
use crate::model::precision::{HalfPrecision, widen_carry};
use crate::params::{Home, ParamRecord, ParamTable};
use crate::schedule::{self, Cost, Stages, Timeline, run_of, simulate};
use crate::topology::cluster::{Axis, Coordinate, Mesh, Placement};
use crate::topology::layout::Layout;

/// The resolved plan of one rank.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The mesh.
    pub mesh: Mesh,
    /// Which of its groups lie inside one worker.
    pub placement: Placement,
    /// Where this rank stands in it.
    pub coordinate: Coordinate,
    /// The task graphs, where scopes were opened around the model's parts.
    pub layout: Option<Layout>,
    /// The device of this rank, in words.
    pub device: String,
    /// The segments that the model is a chain of, by what it calls them.
    pub segments: Arc<[String]>,
    /// Which stage runs which of them.
    pub stages: Stages,
    /// In which order a stage runs forwards and backwards.
    pub schedule: Order,
    /// The micro-batches of a step that the configuration names: for the drawing of the schedule.
    pub micro_batches: usize,
    /// How a step is made.
    pub settings: EngineSettings,
    /// The runs of segments whose forward is run again in backward, because only what enters them is kept.
    pub recompute: Vec<Range<usize>>,
    /// The bytes that may be stored for backward, where the first step chooses these runs; none where they are chosen.
    pub recompute_budget: Option<u64>,
    /// One record per parameter, and the units in which they travel and lie.
    pub params: ParamTable,
    /// What is sharded over the replicas.
    pub zero: ZeroLevel,
    /// Where each kind of state lies.
    pub tiers: Tiers,
    /// The 16-bit type in which segments compute; none: in that of the parameters.
    pub half: Option<HalfPrecision>,
    /// Under mixed precision: the segments that compute in f32 all the same, as all their parameters stay in f32, or a layer of
    /// Burn in them would mix types.
    pub full_segments: Vec<usize>,
    /// The limit of the number of buckets.
    pub max_splits: usize,
    /// Options that are set and make the result depend on the layout.
    pub exceptions: Vec<String>,
    /// What layers take over all rows of a micro-batch: it depends on the number of micro-batches.
    pub over_micro_batch: Vec<&'static str>,
    /// Layers of Burn that draw from its generator, keep running statistics, or mix types in 16 bits.
    pub(crate) burn_layers: BurnLayers,
    /// What was found of each segment, if somebody looked which of them can run in slices.
    pub(super) findings: Arc<[SplitFinding]>,
}

impl Plan {
    /// Layers of Burn that draw from its generator: what they draw is the same again on this layout, and other numbers on
    /// another one.
    pub fn drawing_layers(&self) -> &[String] {
        &self.burn_layers.drawing
    }

    /// Layers of Burn that take their statistics over what one rank runs at a time.
    pub fn batch_norms(&self) -> &[String] {
        &self.burn_layers.batch_norms
    }

    /// The 16-bit type in which a segment computes, if it does.
    pub(crate) fn half_in(&self, segment: usize) -> Option<HalfPrecision> {
        self.half.filter(|_| !self.full_segments.contains(&segment))
    }

    /// What enters a segment, in the type in which it computes.
    pub(crate) fn enter<C: Carry>(&self, segment: usize, carry: C) -> C {
        match (self.half, self.half_in(segment)) {
            (None, _) => carry,
            (Some(_), Some(half)) => half.carry(carry),
            (Some(_), None) => widen_carry(carry),
        }
    }

    /// The numbers of the records of running statistics that layers of Burn keep on this rank.
    pub(crate) fn statistics(&self) -> impl Iterator<Item = usize> + '_ {
        self.burn_layers.statistics.iter().copied().filter(|number| self.params.records[*number].held)
    }

    /// The same of all layers, also where the replicas move theirs alike. What is trained, or lies beside the model, only has
    /// such a name.
    pub(crate) fn running_statistics(&self) -> impl Iterator<Item = usize> + '_ {
        let is_own = |record: &ParamRecord| record.held && !record.trainable && !record.parked;
        self.burn_layers.running.iter().copied().filter(move |number| is_own(&self.params.records[*number]))
    }

    /// The same plan, where these runs of segments are run again in backward.
    pub(crate) fn with_recompute(self, recompute: Vec<Range<usize>>) -> Self {
        Self { recompute, ..self }
    }

    /// The same plan for the time in which a model is whole: nothing lies elsewhere.
    pub(crate) fn unparked(mut self) -> Self {
        self.params.records.iter_mut().for_each(|record| record.parked = false);
        self.params.units_mut().for_each(|unit| unit.residency.parameters = Home::Model);
        self
    }

    /// Compares it with the plan of the same model once it is drawn.
    ///
    /// # Errors
    ///
    /// Where parameters are not in the model between their uses: one that asks for a gradient in one of the two only.
    pub(crate) fn check_drawn(&self, drawn: &Self) -> Result<()> {
        let mut records = self.records().iter().zip(drawn.records());
        let other = records.find(|(before, record)| record.held && record.trainable != before.trainable);
        match other.filter(|_| self.parks()) {
            None => Ok(()),
            Some((before, record)) => Err(Error::Parameter {
                name: record.name.clone(),
                reason: format!(
                    "asks for a gradient: {} as it was declared, and {} when it was drawn; freeze it where its layer is \
                     made, before it is drawn",
                    before.trainable, record.trainable
                ),
            }),
        }
    }

    /// The ranks that are replicas of this one along an axis, this one included.
    pub(crate) fn ranks_over(&self, axis: Axis) -> usize {
        self.mesh.sizes_in(self.stage()).along(axis)
    }

    /// The limit of the norm of each replica's own gradient, where these are clipped before they are reduced.
    pub(crate) fn local_clip_norm(&self) -> Option<f64> {
        self.settings.local_clip_norm(self.mesh.model_replicas())
    }

    /// The limit of the norm of the reduced gradient, where that is clipped.
    pub(crate) fn global_clip_norm(&self) -> Option<f64> {
        self.settings.clip_norm.filter(|_| self.local_clip_norm().is_none())
    }

    /// Whether parameters lie elsewhere between their uses.
    pub(crate) fn parks(&self) -> bool {
        parks(self.zero, self.tiers)
    }

    /// Whether gradients are reduced in every micro-batch.
    pub(crate) fn reduces_each(&self) -> bool {
        reduces_each(self.zero, self.tiers)
    }

    /// The bytes of 16-bit copies of parameters that there are at once: of all segments that are stored for backward, and of
    /// the largest that is not.
    pub(crate) fn casts(&self) -> u64 {
        let own = self.stages.of_stage(self.stage()).cloned().flatten();
        let is_again = |segment: &usize| run_of(&self.recompute, *segment).is_some();
        let Some(half) = self.half else { return 0 };
        let bytes = self.segment_bytes(|record| record.half.then(|| record.numel() * half.dtype().size()));
        let of = |segment: usize| if self.half_in(segment).is_some() { bytes[segment] } else { 0 };
        let (again, stored): (Vec<usize>, Vec<usize>) = own.partition(is_again);
        stored.into_iter().map(of).sum::<u64>() + again.into_iter().map(of).max().unwrap_or(0)
    }

    /// Whether anything lies away from the device.
    pub(crate) fn offloads(&self) -> bool {
        self.tiers.any(Tier::Host) || self.tiers.any(Tier::Disk)
    }

    /// One record per parameter, in the order in which the module lists them.
    pub fn records(&self) -> &[ParamRecord] {
        &self.params.records
    }

    /// This rank's stage.
    pub fn stage(&self) -> usize {
        self.coordinate.pipeline
    }

    /// When stages do what in a step, if a backward takes as long as two forwards and sending nothing.
    ///
    /// # Errors
    ///
    /// A step without a micro-batch.
    pub fn timeline(&self) -> schedule::Result<Timeline> {
        let costs = vec![Cost::USUAL; self.stages.parts().len()];
        simulate(&self.schedule.verified(self.stages.count(), self.micro_batches)?, &costs)
    }

    /// The fraction of the time of all stages in which they wait, by the [timeline](Self::timeline); none with one stage.
    pub fn expected_bubble(&self) -> Option<f64> {
        (self.stages.count() > 1).then(|| self.timeline().ok().map(|timeline| timeline.bubble())).flatten()
    }

    /// The record of the parameter with this path.
    pub fn record(&self, name: &str) -> Option<&ParamRecord> {
        self.params.record(name)
    }

    /// The number of parameters of the whole model.
    pub fn num_params(&self) -> usize {
        self.params.records.iter().map(ParamRecord::global_numel).sum()
    }

    /// The number of parameters that this rank holds.
    pub fn num_params_held(&self) -> usize {
        self.params.records.iter().filter(|record| record.held).map(ParamRecord::numel).sum()
    }
}
