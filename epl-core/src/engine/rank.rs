//! The engine of a rank, and what it is made of.

use std::collections::BTreeMap;

use burn::tensor::{Device, TensorData};
use epl_comm::Span;
use serde_json::Value;

use super::communicators::Communicators;
use super::diagnostics::Diagnostics;
use super::draws::Draws;
use super::gather::{self, GatherSource};
use super::links::StageLinks;
use super::state::{ModelState, Setup};
use crate::error::Result;
use crate::json::check_finite;
use crate::launch::{Epl, LaidOutModel};
use crate::model::context::{Context, Pass};
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::optim::{LossScaler, OptimizerConfig, ResolvedOptimizer};
use crate::plan::{EngineSettings, Plan};

use super::micro_batch::MicroBatch;

/// Runs training steps of one rank's model.
///
/// Every method that says so is a collective: all ranks call it in the same order.
///
/// ```
/// use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, tensor::Tensor};
/// use epl_core::{Config, Engine, Place, WithLoss, launch};
///
/// launch(&Config::new().with("cluster.ranks", 2)?, |epl| {
///     let loss = |net: &Linear, rows: &Tensor<2>| net.forward(rows.clone()).powi_scalar(2).mean();
///     let net = |at: &Place| WithLoss::new(LinearConfig::new(8, 1).init(at), loss);
///     let mut engine = Engine::build(&epl, net, &SgdConfig::new())?;
///     let batch = Tensor::<2>::ones([16, 8], epl.place().device()); // each rank runs rows of it
///     let report = engine.train_batch(&batch, 0.01)?;
///     assert!(report.loss.is_finite() && engine.steps() == 1); // the same on both
///     engine.check_replicas()?;
///     assert_eq!(engine.parameters()?["weight"].shape().to_vec(), [8, 1]);
///     let trained = engine.inference()?.model; // Burn's `Linear`, whole
///     assert_eq!(trained.forward(batch.without_autodiff()).dims(), [16, 1]);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
pub struct Engine<M: Model> {
    pub(super) plan: Plan,
    pub(super) context: Context,
    /// With autodiff.
    pub(super) device: Device,
    pub(super) communicators: Communicators,
    pub(super) state: ModelState<M>,
    pub(super) diagnostics: Diagnostics,
    pub(super) draws: Draws,
    /// Whether its layout is only tried, and another one comes behind it.
    pub(super) is_trial: bool,
}

impl<M: Model> Engine<M> {
    /// Builds a model and makes its engine, as the configuration says. Collective.
    ///
    /// # Errors
    ///
    /// As [`Epl::build`] and [`new`](Self::new), and when the plan needs more of the device than `offload.device_bytes`: by
    /// how much, and the first setting with which it would fit. In a program that is run for its plan
    /// [`Error::PlanOnly`](crate::Error::PlanOnly), once that is made.
    pub fn build<O: OptimizerConfig>(epl: &Epl, model: impl FnMut(&Place) -> M, optimizer: &O) -> Result<Self> {
        check_finite(O::NAME, optimizer)?;
        let settings = EngineSettings::from_config(epl.config());
        let planned = epl.plan(model)?.for_optimizer(optimizer, settings)?;
        if let Some(wanted) = epl.wanted() {
            return Err(wanted.made(&planned.builder, optimizer.state()?));
        }
        Self::of(epl.draw(planned)?, optimizer)
    }

    /// Makes the engine of a model that [`Epl::build`](crate::Epl::build) laid out. Collective.
    ///
    /// # Errors
    ///
    /// When a setting is not one that the option of the same meaning takes, one of the optimizer's is not finite, the optimizer
    /// would compute something else under this layout, the plan needs more of the device than `offload.device_bytes`, or a
    /// rank failed.
    pub fn new<O: OptimizerConfig>(built: LaidOutModel<M>, optimizer: &O, settings: EngineSettings) -> Result<Self> {
        settings.check()?;
        check_finite(O::NAME, optimizer)?;
        if let Some(wanted) = &built.wanted {
            let (builder, _) = built.builder.clone().for_optimizer(optimizer, settings)?;
            return Err(wanted.made(&builder, optimizer.state()?));
        }
        Self::of(built.for_optimizer(optimizer, settings)?, optimizer)
    }

    /// The engine of a model that is laid out for this optimizer.
    fn of<O: OptimizerConfig>(built: LaidOutModel<M>, optimizer: &O) -> Result<Self> {
        let LaidOutModel { params, builder, plan, place, wanted: _ } = built;
        let (context, device) = (place.context().clone(), Place::device(&place).clone());
        let optimizer = ResolvedOptimizer::new(optimizer, &builder.config.optimizer, plan.records())?;
        // What is collective comes first: the rest may fail on one rank.
        let communicators = Communicators::new(&plan, &context)?;
        let state = ModelState::new(params, &plan, optimizer)?;
        let diagnostics = Diagnostics::new(&plan, &context, &device);
        let draws = Draws::of(&plan);
        Ok(Self { plan, context, device, communicators, state, diagnostics, draws, is_trial: false })
    }

    /// One of a layout that is tried: the ranks stay in their warm-up, as another layout comes behind it.
    pub(crate) fn into_trial(self) -> Self {
        Self { is_trial: true, ..self }
    }

    /// What a step runs on, and what it changes.
    pub(super) fn parts(&mut self) -> (Setup<'_>, &mut ModelState<M>) {
        let Self { plan, context, device, communicators, state, .. } = self;
        (Setup { plan, context, device, communicators }, state)
    }

    /// The model. With pipeline stages, what other stages hold is empty in it, and under ZeRO v3, or with offloaded
    /// parameters, all that lies elsewhere: see [`inference`](Self::inference).
    pub fn model(&self) -> &M {
        self.state.params.model()
    }

    /// The ordinary Burn module; the engine ends. With pipeline stages, what other stages hold is empty in it, and under
    /// ZeRO v3, or with offloaded parameters, all that lies elsewhere: [`inference`](Self::inference) has the whole.
    pub fn into_inner(self) -> M {
        self.state.params.into_model()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The optimizer's name and settings.
    pub fn optimizer(&self) -> (&'static str, &Value) {
        (self.state.optimizer_settings.0, &self.state.optimizer_settings.1)
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device of this rank, with autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The micro-batches of a step of [`train_batch`](Self::train_batch), from whichever of the batch sizes are given.
    pub(crate) fn num_micro_batch(&self) -> usize {
        self.plan.micro_batches
    }

    /// How many samples were drawn for [`train_batch`](Self::train_batch), and whether batches were compared by their values.
    pub(crate) fn drawn(&self) -> (u64, bool) {
        (self.state.drawn, self.diagnostics.has_compared)
    }

    /// Counts samples that were drawn, of a batch that was compared.
    pub(crate) fn draw(&mut self, samples: u64) {
        self.state.drawn += samples;
        self.diagnostics.has_compared = true;
    }

    /// Whether the types of parameters are to be logged (`amp.debug_log`).
    pub(crate) fn logs_types(&self) -> bool {
        self.plan.settings.debug_log
    }

    /// The loss scale and the steps that were skipped, under mixed precision.
    pub fn loss_scaler(&self) -> Option<&LossScaler> {
        self.state.scaler.as_ref()
    }

    /// How many steps were made; those that were skipped do not count.
    pub fn steps(&self) -> u64 {
        self.state.steps
    }

    /// The parameters, whole, by path. Collective.
    pub fn parameters(&self) -> Result<BTreeMap<String, TensorData>> {
        self.gather(&GatherSource::Parameters, true)
    }

    /// The tensors of the optimizer's state that have their parameter's shape, whole, by path and field. Collective.
    pub fn optimizer_state(&self) -> Result<BTreeMap<String, TensorData>> {
        self.gather(&GatherSource::Optimizer(self.state.states(&self.plan)?), true)
    }

    pub(super) fn gather(&self, source: &GatherSource<'_>, keeps: bool) -> Result<BTreeMap<String, TensorData>> {
        gather::gather(&self.state.params, &self.plan, &self.context, source, keeps)
    }

    /// The whole model on every rank, without autodiff, dropout off: for an export, or a forward of one's own. Collective
    /// over pipeline stages.
    ///
    /// Every rank needs the memory for it; [`evaluate`](Self::evaluate) and [`forward`](Self::forward) do not, as they go
    /// through the stages.
    ///
    /// # Errors
    ///
    /// When a peer fails.
    pub fn inference(&self) -> Result<M> {
        self.context.begin(Pass { step: self.state.steps, training: false, samples: [].into(), empty: false });
        let device = self.device.clone().without_autodiff();
        let model = self.state.params.whole(self.model().valid(), &self.plan.params, &self.context, &device)?;
        gather::whole(model, &self.plan, &self.context)
    }

    /// The ways to the other stages. What comes lies on `device`.
    pub(super) fn links<'a>(&'a self, device: &'a Device) -> StageLinks<'a> {
        StageLinks::new(&self.plan.stages, self.communicators.stages(), self.communicators.widths(), device)
    }

    pub(super) fn begin<B>(&self, micro_batch: &MicroBatch<B>, training: bool) {
        self.context.begin(Pass {
            step: self.state.steps,
            training,
            samples: micro_batch.samples.clone(),
            empty: micro_batch.empty,
        });
    }

    /// Before a segment of a micro-batch's pass is run; the result is dropped when it has been.
    #[must_use]
    pub(super) fn enter(&self, segment: usize, what: &str, micro_batch: usize) -> Option<Span> {
        self.context.enter(segment);
        self.context.span(|| format!("{what} {micro_batch} segment {segment}"))
    }
}

/// Runs `f`; a collective that failed inside forward or backward unwinds, and comes back as its error.
pub(super) fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    epl_comm::catch(f)?
}
