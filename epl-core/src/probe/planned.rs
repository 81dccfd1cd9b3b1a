//! A model that is laid out and of which nothing is drawn: what it would need, for any world.

use std::sync::Arc;

use burn::tensor::Device;
use epl_comm::ThreadMemory;

use crate::config::{CheckpointType, ZeroLevel};
use crate::error::{Error, Result};
use crate::memory::{
    Activations, Fit, Flow, MemoryEstimate, MemoryInputs, OptimizerState, SegmentActivations, Setting,
    StoredActivations, Tier, Tiers, check,
};
use crate::model::context::Context;
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::offload::is_host;
use crate::optim::{OptimizerConfig, ResolvedGroups};
use crate::plan::builder::PlanBuilder;
use crate::plan::{EngineSettings, Plan};
use crate::probe::measure::{Bench, NOT_COUNTED, Needs};
use crate::schedule::{self, Action};

/// A model whose parameters have no values yet, with its plan. Made by [`Epl::plan`](crate::Epl::plan).
///
/// In [`launch_dry`](crate::launch_dry) it shows one rank of a world of any size:
///
/// ```
/// # use burn::nn::LinearConfig;
/// # use burn::optim::AdamWConfig;
/// # use burn::tensor::Tensor;
/// # use epl_core::{Chain, Config, Place, launch_dry, memory::Tier};
/// # fn model(at: &Place) -> Chain<burn::nn::Linear, Tensor<2>, Tensor<2>> {
/// #     let layer = LinearConfig::new(100_000, 100_000).init(at);
/// #     Chain::of(layer).first(&["weight", "bias"], |layer: &burn::nn::Linear, rows: &Tensor<2>| layer.forward(rows.clone()))
/// #         .mean_loss(|_, rows, _| rows.mean())
/// # }
/// let config = Config::new().with("dist.data_parallel_size", 64)?.with("zero.level", "v2")?;
/// // 10¹⁰ parameters, of which none is drawn.
/// let (estimate, _) = launch_dry(&config, 0, |epl| epl.plan(model)?.memory(&AdamWConfig::new())?.estimate())?;
/// println!("{estimate}");
/// assert!(estimate.model_states() > 40_000_000_000 + 120_000_000_000 / 64);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LazyModel<M> {
    pub(crate) model: M,
    pub(crate) builder: PlanBuilder,
    pub(crate) plan: Plan,
    pub(crate) place: Place,
}

/// What a planned model would need, with an optimizer.
#[derive(Clone, Debug)]
pub struct PlannedMemory<'a> {
    /// For this optimizer.
    builder: Arc<PlanBuilder>,
    plan: Plan,
    state: OptimizerState,
    activations: Option<(&'a Activations, usize)>,
}

impl<M: Model> LazyModel<M> {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The context that the model's layers hold.
    pub fn context(&self) -> &Context {
        self.place.context()
    }

    /// What each segment of this rank's stage stores for backward, from measures of micro-batches of two numbers of rows,
    /// which `batch` makes; none where nobody counts: the program's allocator is no
    /// [`CountingAllocator`](epl_comm::CountingAllocator), or the device has memory of its own. Collective.
    ///
    /// One segment at a time gets values, and of segments alike only one; so it needs the memory of one segment.
    ///
    /// # Errors
    ///
    /// When the two numbers are no two, when stages have different widths, or a peer fails.
    pub fn activations(
        &self,
        rows: [usize; 2],
        mut batch: impl FnMut(usize, &Device) -> M::Batch,
    ) -> Result<Option<Activations>> {
        let Self { plan, place, .. } = self;
        if rows[0] == rows[1] || rows.contains(&0) {
            return Err(Error::invalid(format!(
                "activations are measured with two numbers of rows, and {} and {} are given; give two that are not 0",
                rows[0], rows[1]
            )));
        }
        if plan.mesh.is_bridged() {
            return Err(Error::invalid(
                "activations are measured where all stages have one width, and these have different ones; measure a built \
                 model by `Engine::profile`",
            ));
        }
        let device = place.device();
        if ThreadMemory::now().is_none() || !is_host(device) {
            return Ok(None);
        }
        let bench = self.bench();
        let mut measure = |rows: usize| bench.measure(rows, &batch(rows, device));
        let (few, many) = (measure(rows[0])?, measure(rows[1])?);
        let fit = |(few, many): (Option<Needs>, Option<Needs>)| few.zip(many).map(|needs| fitted(rows, needs));
        Ok(Some(Activations { segments: few.into_iter().zip(many).map(fit).collect(), measured: rows }))
    }

    /// What runs its segments one at a time.
    pub(super) fn bench(&self) -> Bench<'_, M> {
        let Self { model, plan, place, .. } = self;
        Bench { model, plan, context: place.context(), device: place.device() }
    }

    /// What this rank needs with an optimizer; activations are not known yet.
    ///
    /// # Errors
    ///
    /// When the optimizer's settings cannot be read, or one of its groups has no parameter.
    pub fn memory<O: OptimizerConfig>(&self, optimizer: &O) -> Result<PlannedMemory<'_>> {
        let builder = self.builder.clone().laid_for(optimizer)?;
        let plan = builder.plan()?;
        Ok(PlannedMemory::of(Arc::new(builder), plan, optimizer.state()?))
    }

    /// The same, laid out for an optimizer, with the plan that an engine with it and these settings would have.
    ///
    /// # Errors
    ///
    /// When the plan needs more of the device than `offload.device_bytes`, or the optimizer's settings cannot be read.
    pub fn for_optimizer<O: OptimizerConfig>(self, optimizer: &O, settings: EngineSettings) -> Result<Self> {
        let (builder, plan) = self.builder.for_optimizer(optimizer, settings)?;
        Ok(Self { builder, plan, ..self })
    }
}

impl<'a> PlannedMemory<'a> {
    /// What a plan needs with an optimizer that keeps so much state.
    pub(crate) fn of(builder: Arc<PlanBuilder>, plan: Plan, state: OptimizerState) -> Self {
        Self { builder, plan, state, activations: None }
    }

    /// The plan.
    pub(crate) fn into_plan(self) -> Plan {
        self.plan
    }

    /// With activations of micro-batches of so many rows.
    #[must_use]
    pub fn with_activations(self, activations: Option<&'a Activations>, rows: usize) -> Self {
        Self { activations: activations.map(|activations| (activations, rows)), ..self }
    }

    /// What this rank needs.
    ///
    /// # Errors
    ///
    /// A schedule that does not fit the number of micro-batches.
    pub fn estimate(&self) -> Result<MemoryEstimate> {
        Ok(self.inputs()?.estimate())
    }

    /// What the estimate is made from.
    ///
    /// # Errors
    ///
    /// As [`estimate`](Self::estimate).
    pub fn inputs(&self) -> Result<MemoryInputs> {
        self.inputs_of(&self.plan)
    }

    /// The estimate, if it fits into so many bytes of the device.
    ///
    /// # Errors
    ///
    /// By how much it does not, and the first setting with which it would; as [`estimate`](Self::estimate).
    pub fn check(&self, budget: u64) -> Result<MemoryEstimate> {
        let inputs = self.inputs()?;
        let estimate = inputs.estimate();
        let with = |settings: &[Setting]| self.with(settings).map(|inputs| inputs.estimate());
        match check(&estimate, budget, inputs.replicas(), with) {
            Ok(()) => Ok(estimate),
            Err(over) => Err(Error::invalid(over.to_string())),
        }
    }

    /// The inputs under other settings; none where they say nothing new, or the model cannot have them.
    fn with(&self, settings: &[Setting]) -> Option<MemoryInputs> {
        let (mut config, mut replicas) = (self.builder.config.clone(), Vec::new());
        for setting in settings {
            match *setting {
                Setting::Recompute if config.gradient_checkpoint.r#type != CheckpointType::Off => return None,
                Setting::Recompute => config.gradient_checkpoint.r#type = CheckpointType::Auto,
                Setting::Zero(level) if level <= config.zero.level => return None,
                Setting::Zero(level) => config.zero.level = level,
                Setting::Offload(level) if Tiers::of(level).state <= Tiers::of(config.offload.level).state => {
                    return None;
                }
                Setting::Offload(level) => config.offload.level = level,
                Setting::Replicas(_) => replicas.push(*setting),
            }
        }
        // What would be refused beside the options that were given is no remedy, here or by the plan.
        config.validate().ok()?;
        // Of the stage whose plan this is: all stages may have one builder.
        let plan = self.builder.with_config(config).at(self.plan.coordinate).plan().ok()?;
        self.inputs_of(&plan).ok()?.with(&replicas)
    }

    fn inputs_of(&self, plan: &Plan) -> Result<MemoryInputs> {
        let parameters = plan.held(self.state);
        let trained = plan.params.records.iter().filter(|record| record.held && record.trainable);
        let largest = trained.map(|record| record.numel() * record.dtype.size()).max().unwrap_or(0) as u64;
        Ok(MemoryInputs {
            zero: plan.zero,
            tiers: plan.tiers,
            resident: plan.tiers.any(Tier::Disk).then_some(self.builder.config.offload.resident_bytes),
            bucket: plan.reduced_bucket(),
            segment: plan.largest_bucket(ZeroLevel::V3),
            two_segments: plan.two_segments(),
            largest,
            whole_tensors: self.builder.gives_owners(),
            micro_batches: plan.micro_batches as u64,
            clips: plan.global_clip_norm().is_some(),
            clips_own: plan.local_clip_norm().is_some(),
            casts: plan.casts(),
            activations: self.stored(plan)?,
            recomputed: None,
            parameters,
        })
    }

    /// The activations of a stage.
    fn stored(&self, plan: &Plan) -> Result<StoredActivations> {
        let Some((activations, rows)) = self.activations else { return Ok(StoredActivations::unknown(NOT_COUNTED)) };
        let stage = plan.stage();
        let actions = plan.schedule.actions(stage, plan.stages.count(), plan.micro_batches)?;
        let part = |chunk| plan.stages.parts()[plan.stages.part(stage, chunk)].clone();
        let [first, later] = in_flight(&actions);
        let flow = Flow {
            rows,
            parts: (0..plan.stages.chunks()).map(part).collect(),
            first,
            later,
            runs: plan.recompute.clone(),
        };
        Ok(activations.stored(&flow))
    }
}

impl PlanBuilder {
    /// The builder and the plan for an optimizer.
    ///
    /// # Errors
    ///
    /// As of [`LazyModel::for_optimizer`].
    pub(crate) fn for_optimizer<O: OptimizerConfig>(
        self,
        optimizer: &O,
        settings: EngineSettings,
    ) -> Result<(Self, Plan)> {
        let builder = self.with_settings(settings).laid_for(optimizer)?;
        let plan = builder.plan()?;
        if let Some(budget) = builder.config.offload.device_bytes {
            PlannedMemory::of(Arc::new(builder.clone()), plan.clone(), optimizer.state()?).check(budget)?;
        }
        Ok((builder, plan))
    }

    /// The builder for an optimizer.
    ///
    /// # Errors
    ///
    /// When one of its groups has no parameter.
    pub(crate) fn laid_for<O: OptimizerConfig>(self, optimizer: &O) -> Result<Self> {
        let records = self.parameters();
        let frozen = ResolvedGroups::new(optimizer, &self.config.optimizer, records)?.frozen(records);
        Ok(self.with_optimizer(O::ELEMENT_WISE, frozen))
    }
}

/// How many micro-batches of a part are between their forward and their backward at most, until the first backward is
/// over, and from then on.
fn in_flight(actions: &[Action]) -> [usize; 2] {
    let (mut kept, mut most) = (0, [0, 0]);
    let mut later = 0;
    for action in actions {
        match action.kind {
            schedule::ActionKind::Forward => kept += 1,
            schedule::ActionKind::Backward => {
                kept -= 1;
                later = 1;
            }
        }
        most[later] = most[later].max(kept);
    }
    most
}

fn fitted(rows: [usize; 2], (few, many): (Needs, Needs)) -> SegmentActivations {
    let fit = |bytes: fn(&Needs) -> u64| Fit::through([(rows[0], bytes(&few)), (rows[1], bytes(&many))]);
    SegmentActivations {
        carry: fit(|needs| needs.carry),
        stored: fit(|needs| needs.stored),
        results: fit(|needs| needs.results),
        working: fit(|needs| needs.working),
    }
}
