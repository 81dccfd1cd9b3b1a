//! From what was said, and what the model is, to its plan.
//!
//! ```text
//! configuration ┐
//! survey        ├─▶ PlanBuilder ─▶ Plan      a pure function: no tensors, no communication
//! mesh, scopes  │        ▲
//! optimizer     ┘        └ what if: the same builder with other options
//! ```

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::DType;

use super::burn_layers::BurnLayers;
use super::finding::SplitFinding;
use super::order::Order;
use super::resolved::Plan;
use super::settings::EngineSettings;
use super::units::Division;
use super::{kept, stages};
use crate::config::{AmpLevel, Config, ZeroLevel};
use crate::error::{Error, Refusals, Result};
use crate::memory::{Tier, Tiers};
use crate::model::precision::HalfPrecision;
use crate::params::ParamRecord;
use crate::params::averages::check_averages;
use crate::params::record::check_bridged;
use crate::pattern;
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
    /// The parameters that a group of the optimizer freezes, by the numbers of their records; nothing: none.
    frozen: Vec<bool>,
    mesh: Mesh,
    placement: Placement,
    coordinate: Coordinate,
    /// The task graphs, where scopes were opened.
    layout: Option<Layout>,
    /// The device of this rank, in words.
    device: String,
    /// What the model calls its segments.
    segments: Arc<[String]>,
    survey: Arc<Survey>,
    /// In which order stages run, once a plan was made: a file that says it is read once.
    order: Option<Order>,
}

/// What the plans of all ranks have in common.
struct Common {
    /// As the rank of the builder has them, not divided yet.
    records: Vec<ParamRecord>,
    mixes: Vec<bool>,
    half: Option<HalfPrecision>,
    tiers: Tiers,
    staged: Staged,
}

/// Which stage runs what, and when.
#[derive(Clone)]
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
            frozen: Vec::new(),
            mesh: mesh.clone(),
            placement,
            coordinate: mesh.coordinate(rank),
            layout: None,
            device: String::new(),
            segments: Arc::default(),
            survey: Arc::new(survey),
            order: None,
        }
    }

    /// With the task graphs that scopes make.
    pub fn with_layout(self, layout: Option<Layout>) -> Self {
        Self { layout, ..self }
    }

    /// The mesh of the plans.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// What layers take over all rows of a micro-batch.
    pub fn over_micro_batch(&self) -> &[&'static str] {
        &self.survey.over_micro_batch
    }

    /// What of it they take over the rows of one replica.
    pub fn over_replica(&self) -> &[&'static str] {
        &self.survey.over_replica
    }

    /// The paths of layers that are divided over the tensor axis or whole, as an option says.
    pub fn self_contained(&self) -> &[String] {
        &self.survey.self_contained
    }

    /// With what the device is called, and the model's segments are.
    pub fn with_names(self, device: String, segments: Vec<String>) -> Self {
        Self { device, segments: segments.into(), ..self }
    }

    /// With the order of a plan that was made.
    pub fn with_order(self, order: Order) -> Self {
        Self { order: Some(order), ..self }
    }

    /// With these settings of a step.
    pub fn with_settings(self, settings: EngineSettings) -> Self {
        Self { settings, ..self }
    }

    /// The same, for an optimizer that updates each element by itself, or for one that does not, and whose groups freeze these
    /// parameters.
    pub fn with_optimizer(self, element_wise: bool, frozen: Vec<bool>) -> Self {
        Self { element_wise, frozen, ..self }
    }

    /// What is known of the model's parameters before they are laid out.
    pub fn parameters(&self) -> &[ParamRecord] {
        &self.survey.records
    }

    /// Those of them that are trained: neither the model freezes them nor a group of the optimizer, once one is known.
    pub fn trained(&self) -> impl Iterator<Item = &ParamRecord> {
        let frozen = self.frozen.iter().copied().chain(core::iter::repeat(false));
        self.survey
            .records
            .iter()
            .zip(frozen)
            .filter(|(record, frozen)| record.trainable && !frozen)
            .map(|(record, _)| record)
    }

    /// The parameters that a group of the optimizer freezes.
    pub fn frozen_by_groups(&self) -> &[bool] {
        &self.frozen
    }

    /// The same model under other options.
    pub fn with_config(&self, config: Config) -> Self {
        Self { config, ..self.clone() }
    }

    /// The same model under other options as a rank of another mesh has it, which divides layers in as many slices.
    pub fn on_mesh(&self, config: Config, (mesh, rank): (&Mesh, usize), placement: Placement) -> Self {
        let (settings, coordinate) = (EngineSettings::from_config(&config), mesh.coordinate(rank));
        Self { config, settings, mesh: mesh.clone(), placement, coordinate, order: None, ..self.clone() }
    }

    /// The same for the rank at another place of the mesh.
    pub fn at(self, coordinate: Coordinate) -> Self {
        Self { coordinate, ..self }
    }

    /// The same model, of which these parameters are frozen and no others, by the numbers of their records.
    pub fn with_frozen(mut self, frozen: &[bool]) -> Self {
        Arc::make_mut(&mut self.survey)
            .records
            .iter_mut()
            .zip(frozen)
            .for_each(|(record, frozen)| record.trainable = !frozen);
        self
    }

    /// The same model, of whose segments this was found, with its parameters cut accordingly.
    pub fn with_findings(mut self, findings: Vec<SplitFinding>, records: Vec<ParamRecord>) -> Self {
        let survey = Arc::make_mut(&mut self.survey);
        (survey.findings, survey.records) = (findings.into(), records);
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
        let mut common = self.common()?;
        let records = core::mem::take(&mut common.records);
        let full_segments = common.half.map_or_else(Vec::new, |_| full_segments(&records, &common.mixes));
        Ok(self.plan_of(self.coordinate, &common, (records, full_segments, self.survey.burn_layers.clone())))
    }

    /// The plans of some ranks, each with the records alone that its stage holds, which have numbers of their own: what it takes and
    /// needs is known from these.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan).
    pub fn plans_of(&self, ranks: &[usize]) -> Result<Vec<Plan>> {
        let common = self.common()?;
        let full_segments = common.half.map_or_else(Vec::new, |_| full_segments(&common.records, &common.mixes));
        let mut held: Vec<Vec<usize>> = vec![Vec::new(); self.mesh.stages()];
        for (number, record) in common.records.iter().enumerate() {
            record.stages.iter().for_each(|stage| held[*stage].push(number));
        }
        let plan = |rank: &usize| {
            let coordinate = self.mesh.coordinate(*rank);
            let held = &held[coordinate.pipeline];
            let records = held.iter().map(|number| ParamRecord { held: true, ..common.records[*number].clone() });
            let burn_layers = self.survey.burn_layers.among(held);
            self.plan_of(coordinate, &common, (records.collect(), full_segments.clone(), burn_layers))
        };
        Ok(ranks.iter().map(plan).collect())
    }

    /// What plans have in common, whatever their ranks.
    fn common(&self) -> Result<Common> {
        let config = &self.config;
        let tiers = Tiers::from_config(config);
        let half = (config.amp.level == AmpLevel::O1).then(|| HalfPrecision::new(config.amp.dtype));
        let mut refusals = Refusals::default();
        refusals.of(self.check_local_clip(tiers));
        refusals.of(self.mesh.row_weights().map_err(Error::from));
        let (mut records, mixes) = self.records(half, tiers, &mut refusals);
        let staged = self.stages(&mut records, &mut refusals);
        refusals.into_result()?;
        Ok(Common { records, mixes, half, tiers, staged: staged.expect("what is not there was refused") })
    }

    /// The plan of a rank that has these records and, of all segments, computes in f32 in those; with these layers.
    fn plan_of(
        &self,
        coordinate: Coordinate,
        common: &Common,
        (records, full_segments, burn_layers): (Vec<ParamRecord>, Vec<usize>, BurnLayers),
    ) -> Plan {
        let Staged { stages, recompute, schedule, micro_batches } = common.staged.clone();
        let (max_splits, zero, tiers) = (self.config.communication.max_splits, self.zero(), common.tiers);
        let division = Division {
            mesh: &self.mesh,
            coordinate,
            stages: &stages,
            zero,
            tiers,
            max_splits,
            element_wise: self.element_wise,
        };
        let params = division.table(records);
        Plan {
            mesh: self.mesh.clone(),
            placement: self.placement.clone(),
            coordinate,
            layout: self.layout.clone(),
            device: self.device.clone(),
            segments: self.segments.clone(),
            stages,
            schedule,
            micro_batches,
            settings: self.settings.clone(),
            recompute,
            recompute_budget: self.config.gradient_checkpoint.budget,
            params,
            zero,
            tiers,
            half: common.half,
            full_segments,
            max_splits,
            exceptions: self.exceptions(),
            over_micro_batch: self.survey.over_micro_batch.clone(),
            burn_layers,
            findings: self.survey.findings.clone(),
        }
    }

    /// What is sharded. Where each replica clips its own gradient, that is whole until the last backward of a step: v2 is v1.
    fn zero(&self) -> ZeroLevel {
        match (self.config.zero.level, self.local_clip_norm()) {
            (ZeroLevel::V2, Some(_)) => ZeroLevel::V1,
            (level, _) => level,
        }
    }

    /// The limit of the norm of each replica's own gradient, where there are several.
    fn local_clip_norm(&self) -> Option<f64> {
        self.settings.local_clip_norm(self.mesh.model_replicas())
    }

    /// Refuses that each replica clips its own gradient where no rank has its part of that.
    fn check_local_clip(&self, tiers: Tiers) -> Result<()> {
        if self.local_clip_norm().is_none() {
            return Ok(());
        }
        let what = if self.config.zero.level == ZeroLevel::V3 {
            "under zero.level = v3 it keeps shards of the sum over all replicas; set zero.level = v2"
        } else if tiers.gradients != Tier::Device {
            "gradients that lie away from the device are the sum over all replicas, from every micro-batch on; set \
             offload.gradients = device"
        } else if self.mesh.is_bridged() {
            "in stages of different widths its devices have parts of it; give all stages one width"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!(
            "communication.clip_after_allreduce = false clips the gradient that each replica has of a whole step, and {what}, \
             or leave the option out, which clips the sum over all"
        )))
    }

    /// The options by which the layout changes the mathematics.
    fn exceptions(&self) -> Vec<String> {
        let communication = &self.config.communication;
        let fp16 =
            format!("communication.fp16 = true ({}, scale {})", communication.fp16_dtype, communication.fp16_scale);
        let replicas = self.mesh.model_replicas();
        let local =
            format!("communication.clip_after_allreduce = false (each of {replicas} replicas clips its own gradient)");
        let clips = self.local_clip_norm().is_some();
        [(communication.fp16, fp16), (clips, local)]
            .into_iter()
            .filter(|(is_on, _)| *is_on)
            .map(|(_, said)| said)
            .collect()
    }

    /// The records of the survey, with what the options say of how they are computed with; and by segment, whether a layer in it
    /// would mix types in 16 bits.
    fn records(
        &self,
        half: Option<HalfPrecision>,
        tiers: Tiers,
        refusals: &mut Refusals,
    ) -> (Vec<ParamRecord>, Vec<bool>) {
        let mut records = self.survey.records.clone();
        // Rows are not scattered.
        let is_each = self.config.zero.level.shards_gradients() || tiers.gradients != Tier::Device;
        let is_dense = self.config.communication.sparse_as_dense || is_each;
        let mut mixes = self.survey.burn_layers.mixes.clone();
        let paths: Vec<&str> = self.survey.records.iter().map(|record| record.name.as_str()).collect();
        for said in self.config.amp.full_precision.iter().flatten() {
            let covered =
                refusals.of(pattern::covered(said, &paths, ("amp.full_precision", "parameter"))).unwrap_or_default();
            for number in covered {
                let record = &mut records[number];
                // A layer that EPL does not know computes in one type.
                if core::mem::take(&mut record.half) && !record.declared {
                    record.segments.iter().for_each(|segment| mixes[*segment] = true);
                }
            }
        }
        for record in &mut records {
            record.half &= half.is_some() && !record.segments.iter().all(|segment| mixes[*segment]);
            record.sparse &= !is_dense;
        }
        records.iter_mut().zip(&self.frozen).for_each(|(record, frozen)| record.trainable &= !frozen);
        (records, mixes)
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
        refusals.of(check_averages(records))?;
        let statistics = self.survey.burn_layers.statistics.iter().map(|number| &records[*number]);
        refusals.of(check_statistics(statistics))?;
        let recompute = refusals.of(kept::runs(records, names, &stages, config))?;
        Some(Staged { stages, recompute, schedule: schedule?, micro_batches: micro_batches? })
    }
}

/// Refuses running statistics of which two stages would each keep half.
fn check_statistics<'a>(mut statistics: impl Iterator<Item = &'a ParamRecord>) -> Result<()> {
    match statistics.find(|record| record.is_tied_over_stages()) {
        None => Ok(()),
        Some(record) => Err(Error::Parameter {
            name: record.name.clone(),
            reason: format!(
                "is of a BatchNorm of Burn that runs on the stages {:?}, each of which would keep statistics of its own; use that \
                 of `epl::nn`, or run its segments on one stage",
                record.stages
            ),
        }),
    }
}

/// The segments that compute in f32 under mixed precision: all of their parameters do, or a layer of Burn in them `mixes` types.
fn full_segments(records: &[ParamRecord], mixes: &[bool]) -> Vec<usize> {
    // `None` where no parameter was seen.
    let mut is_full: Vec<Option<bool>> = vec![None; mixes.len()];
    for record in records {
        let is_f32 = !record.half && !matches!(record.dtype, DType::F16 | DType::BF16);
        record.segments.iter().for_each(|segment| is_full[*segment] = Some(is_f32 && is_full[*segment] != Some(false)));
    }
    (0..mixes.len()).filter(|segment| mixes[*segment] || is_full[*segment] == Some(true)).collect()
}
