//! From what was said, and what the model is, to its plan.
//!
//! ```text
//! configuration ┐
//! survey        ├─▶ PlanBuilder ─▶ Plan      a pure function: no tensors, no communication
//! mesh, scopes  │        ▲
//! optimizer     ┘        └ what if: the same builder with other options
//! ```

use std::ops::Range;

use super::order::Order;
use super::resolved::Plan;
use super::settings::EngineSettings;
use super::units::{Division, parks};
use super::{kept, stages};
use crate::config::{AmpLevel, CheckpointType, Config};
use crate::error::{Refusals, Result};
use crate::memory::{Tier, Tiers};
use crate::model::precision::HalfPrecision;
use crate::params::record::check_bridged;
use crate::params::{ParamRecord, pattern};
use crate::plan::survey::Survey;
use crate::schedule::Stages;
use crate::topology::cluster::{Coordinate, Mesh, Placement};
use crate::topology::layout::Layout;

/// All that a plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct PlanBuilder {
    pub config: Config,
    settings: EngineSettings,
    /// Whether the optimizer updates each element by itself.
    element_wise: bool,
    mesh: Mesh,
    placement: Placement,
    coordinate: Coordinate,
    /// The task graphs, where scopes were opened.
    layout: Option<Layout>,
    /// The device of this rank, in words.
    device: String,
    /// What the model calls its segments.
    segments: Vec<String>,
    survey: Survey,
    /// In which order stages run, once a plan was made: a file that says it is read once.
    order: Option<Order>,
}

/// Which stage runs what, and when.
struct Staged {
    stages: Stages,
    recompute: Vec<Range<usize>>,
    schedule: Order,
    micro_batches: usize,
}

impl PlanBuilder {
    /// The builder of a rank's plan, as the configuration says, for an optimizer that updates each element by itself, as most
    /// do.
    pub fn new(config: &Config, (mesh, rank): (&Mesh, usize), placement: Placement, survey: Survey) -> Self {
        Self {
            config: config.clone(),
            settings: EngineSettings::from_config(config),
            element_wise: true,
            mesh: mesh.clone(),
            placement,
            coordinate: mesh.coordinate(rank),
            layout: None,
            device: String::new(),
            segments: Vec::new(),
            survey,
            order: None,
        }
    }

    /// With the task graphs that scopes make.
    pub fn with_layout(self, layout: Option<Layout>) -> Self {
        Self { layout, ..self }
    }

    /// With what the device is called, and the model's segments are.
    pub fn with_names(self, device: String, segments: Vec<String>) -> Self {
        Self { device, segments, ..self }
    }

    /// With the order of a plan that was made.
    pub fn with_order(self, order: Order) -> Self {
        Self { order: Some(order), ..self }
    }

    /// With these settings of a step.
    pub fn with_settings(self, settings: EngineSettings) -> Self {
        Self { settings, ..self }
    }

    /// The same, for an optimizer that updates each element by itself, or for one that does not.
    pub fn with_optimizer(self, element_wise: bool) -> Self {
        Self { element_wise, ..self }
    }

    /// The same model under other options.
    pub fn with_config(&self, config: Config) -> Self {
        Self { config, ..self.clone() }
    }

    /// The same model, of which these parameters are frozen and no others, by the numbers of their records.
    pub fn with_frozen(mut self, frozen: &[bool]) -> Self {
        self.survey.records.iter_mut().zip(frozen).for_each(|(record, frozen)| record.trainable = !frozen);
        self
    }

    /// Whether parameters are given to owners, as the optimizer looks at whole tensors.
    pub fn gives_owners(&self) -> bool {
        !self.element_wise
    }

    /// The plan.
    ///
    /// # Errors
    ///
    /// When the model cannot be laid out as asked: all that is known to be in the way.
    pub fn plan(&self) -> Result<Plan> {
        let (config, zero) = (&self.config, self.config.zero.level);
        let tiers = Tiers::from_config(config);
        let half = (config.amp.level == AmpLevel::O1).then(|| HalfPrecision::new(config.amp.dtype));
        let mut refusals = Refusals::default();
        let recomputes = config.gradient_checkpoint.r#type != CheckpointType::Off || parks(zero, tiers);
        let allow_unseeded = config.train.allow_unseeded_layers;
        let at = (&self.mesh, self.coordinate);
        self.survey.check(at, allow_unseeded, recomputes, half.is_some(), &mut refusals);
        let mut records = self.records(half, tiers, &mut refusals);
        let staged = self.stages(&mut records, &mut refusals);
        refusals.into_result()?;
        let Staged { stages, recompute, schedule, micro_batches } = staged.expect("what is not there was refused");
        let max_splits = config.communication.max_splits;
        let division = Division {
            mesh: &self.mesh,
            coordinate: self.coordinate,
            stages: &stages,
            zero,
            tiers,
            max_splits,
            element_wise: self.element_wise,
        };
        let full_segments = half.map_or_else(Vec::new, |_| full_segments(&records, self.segments.len()));
        let params = division.table(records);
        Ok(Plan {
            mesh: self.mesh.clone(),
            placement: self.placement.clone(),
            coordinate: self.coordinate,
            layout: self.layout.clone(),
            device: self.device.clone(),
            segments: self.segments.clone(),
            stages,
            schedule,
            micro_batches,
            settings: self.settings.clone(),
            recompute,
            recompute_budget: config.gradient_checkpoint.budget,
            params,
            zero,
            tiers,
            half,
            full_segments,
            max_splits,
            exceptions: exceptions(config),
            unseeded_layers: self.survey.unseeded_layers.clone(),
            batch_norms: self.survey.batch_norms.clone(),
        })
    }

    /// The records of the survey, with what the options say of how they are computed with.
    fn records(&self, half: Option<HalfPrecision>, tiers: Tiers, refusals: &mut Refusals) -> Vec<ParamRecord> {
        let mut records = self.survey.records.clone();
        // Rows are not scattered.
        let is_each = self.config.zero.level.shards_gradients() || tiers.gradients != Tier::Device;
        let is_dense = self.config.communication.sparse_as_dense || is_each;
        for record in &mut records {
            record.half &= half.is_some();
            record.sparse &= !is_dense;
        }
        for said in self.config.amp.full_precision.iter().flatten() {
            let covered = refusals.of(pattern::covered(said, &records, "amp.full_precision")).unwrap_or_default();
            covered.into_iter().for_each(|number| records[number].half = false);
        }
        records
    }

    /// Gives the segments to stages, and says in which order a stage runs them; none where something is refused.
    fn stages(&self, records: &mut [ParamRecord], refusals: &mut Refusals) -> Option<Staged> {
        let (config, names, count) = (&self.config, &self.segments, self.mesh.stages());
        let micro_batches = refusals.of(config.num_micro_batch(self.mesh.replicas()));
        let schedule = match &self.order {
            Some(order) => Some(order.clone()),
            None => micro_batches.and_then(|number| refusals.of(Order::from_config(config, count, number))),
        };
        let stages = refusals.of(stages::stages(records, names.len(), count, self.layout.as_ref(), config))?;
        records.iter_mut().for_each(|record| record.place(&stages, &self.coordinate));
        if self.mesh.is_bridged() {
            refusals.of(check_bridged(records))?;
        }
        let recompute = refusals.of(kept::runs(records, names, &stages, config))?;
        Some(Staged { stages, recompute, schedule: schedule?, micro_batches: micro_batches? })
    }
}

/// The segments with parameters of which none is computed with in 16 bits.
fn full_segments(records: &[ParamRecord], segments: usize) -> Vec<usize> {
    let of = |segment: usize| records.iter().filter(move |record| record.segments.contains(&segment));
    let is_full = |segment: &usize| of(*segment).next().is_some() && !of(*segment).any(|record| record.half);
    (0..segments).filter(is_full).collect()
}

/// The options by which the layout changes the mathematics.
fn exceptions(config: &Config) -> Vec<String> {
    let communication = &config.communication;
    let fp16 = format!("communication.fp16 = true ({}, scale {})", communication.fp16_dtype, communication.fp16_scale);
    if communication.fp16 { vec![fp16] } else { Vec::new() }
}
