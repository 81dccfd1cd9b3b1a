//! One training step: forward and backward segment by segment, reduction, clipping, update.
//!
//! - `micro_batch`, `report`: what goes in and what comes out.
//! - `meter`, `held`: how many bytes of each kind a rank holds.
//! - `weights`: the global divisors.
//! - `batches`: whether ranks were given the batches that they are to have in common.
//! - `parameters`: the model, as segments see it.
//! - `tape`: a micro-batch through consecutive segments and back.
//! - `parcel`, `routes`, `links`: what stages send each other; `idle`: how long they wait for each other.
//! - `run`: the schedule's actions, one after the other; `step`: from the gradients to the parameters.
//! - `gradients`, `reduce`: gradients kept, bucketed and summed while backward goes on.
//! - `compress`, `sparse`: fewer bytes for that.
//! - `norm`: the global norm.
//! - `update`: the optimizer, on what this rank keeps the state of; `one_pass`: where the state lies away from the
//!   device, and `away` what lies there.
//! - `profile`: what segments store and cost, and what is run again because of it.
//! - `recomputation`, `difference`: whether it changes a gradient, and by how much.
//! - `replicas`: whether replicas hold the same bits.
//! - `forward`: segments without a graph, through all stages; `evaluation`: the loss, and what is measured, over many
//!   micro-batches; `decoding`: generation, step after step.
//! - `snapshot`, `states`: what this rank writes of a checkpoint; `restore`, `restore_states`: what it reads of one;
//!   `save`: all ranks together.
//! - `gather`: whole tensors from the ranks' slices, for tests and parity checks.

mod away;
mod batches;
mod compress;
pub(crate) mod difference;
mod decoding;
mod evaluation;
mod forward;
mod gather;
mod gradients;
mod held;
mod idle;
mod links;
mod meter;
mod micro_batch;
mod norm;
mod one_pass;
mod parameters;
mod parcel;
mod profile;
mod recomputation;
mod reduce;
mod replicas;
mod report;
mod restore;
mod restore_states;
mod routes;
mod run;
mod save;
mod snapshot;
mod sparse;
mod states;
mod step;
mod tape;
mod update;
mod weights;

use std::cell::RefCell;
use std::collections::BTreeMap;

use burn::tensor::{Device, TensorData};
use epl_comm::Span;
use serde_json::Value;

pub use decoding::Decoding;
pub use held::Held;
pub use micro_batch::MicroBatch;
pub use report::{EvalReport, StepReport};
pub use step::Accumulated;

pub use crate::plan::{Compression, EngineSettings, TraceWindow};

use crate::error::Result;
use crate::json::{check_finite, json};
use crate::launch::{Built, Epl};
use crate::model::context::{Context, Pass};
use crate::model::place::Place;
use crate::model::segment::Segmented;
use crate::optim::{self, LossScaler, OptimizerConfig, PerParameter};
use crate::params::store::ParamStore;
use crate::plan::Plan;
use crate::probe::Profile;
use away::{AwayGradients, OnePassUpdate};
pub(crate) use batches::Given;
use gather::Source;
use held::Meters;
use links::Links;
use reduce::Lanes;

/// Runs training steps of one rank's model.
///
/// Every method that says so is a collective: all ranks call it in the same order.
pub struct Engine<M: Segmented> {
    /// The model, and what of its parameters lies elsewhere between their uses.
    params: ParamStore<M>,
    /// Where gradients lie away from the device; borrowed while a step accumulates them.
    away: Option<RefCell<AwayGradients>>,
    /// Where the optimizer's state lies away from the device, and is updated there.
    one_pass: Option<OnePassUpdate>,
    optimizer: PerParameter,
    /// Its name and what it was made with.
    optimizer_settings: (&'static str, Value),
    plan: Plan,
    context: Context,
    device: Device,
    lanes: Lanes,
    meters: Meters,
    /// Under mixed precision.
    scaler: Option<LossScaler>,
    step: u64,
    /// Samples that were drawn for [`step_whole`](Self::step_whole).
    drawn: u64,
    /// Whether batches of [`step_whole`](Self::step_whole) were compared by their values.
    pub(crate) has_compared: bool,
    /// The steps that are traced, and how many were made by this engine.
    traced: (Option<TraceWindow>, u64),
    bubble: Option<f64>,
    profiled: Option<Profile>,
    /// For how many micro-batches it is chosen what is run again.
    chosen_for: usize,
}

impl<M: Segmented> Engine<M> {
    /// Builds a model and makes its engine, as the configuration says. Collective.
    ///
    /// # Errors
    ///
    /// As [`Epl::build`] and [`new`](Self::new), and when the plan needs more of the device than `offload.device_bytes`: by
    /// how much, and the first setting with which it would fit.
    pub fn build<O: OptimizerConfig>(epl: &Epl, model: impl FnMut(&Place) -> M, optimizer: &O) -> Result<Self> {
        let settings = EngineSettings::from_config(epl.config());
        Self::of(epl.draw(epl.plan(model)?.for_optimizer(optimizer, settings)?)?, optimizer)
    }

    /// Makes the engine of a model that [`Epl::build`](crate::Epl::build) laid out. Collective.
    ///
    /// # Errors
    ///
    /// When a setting is not one that the option of the same meaning takes, one of the optimizer's is not finite, the optimizer
    /// would compute something else under this layout, the plan needs more of the device than `offload.device_bytes`, or a
    /// rank failed.
    pub fn new<O: OptimizerConfig>(built: Built<M>, optimizer: &O, settings: EngineSettings) -> Result<Self> {
        settings.check()?;
        Self::of(built.for_optimizer(optimizer, settings)?, optimizer)
    }

    /// The engine of a model that is laid out for this optimizer.
    fn of<O: OptimizerConfig>(built: Built<M>, optimizer: &O) -> Result<Self> {
        check_finite(O::NAME, optimizer)?;
        let optimizer_settings = (O::NAME, json("optimizer's settings", optimizer)?);
        let Built { params, plan, place, .. } = built;
        let optimizer = optim::build(optimizer, &optimizer_settings.1, &plan)?;
        let (context, device) = (place.context().clone(), Place::device(&place).clone());
        let lanes = Lanes::new(&plan, &context)?;
        let scaler = plan.half.map(|half| LossScaler::new(half.choice(), plan.settings.loss_scale));
        let traced = plan.settings.trace;
        if traced.is_some() {
            context.switch_trace(false);
        }
        Ok(Self {
            away: AwayGradients::new(&plan, params.storage())?.map(RefCell::new),
            one_pass: OnePassUpdate::new(&plan, params.storage(), O::NAME, &optimizer_settings.1)?,
            params,
            optimizer,
            optimizer_settings,
            plan,
            context,
            device,
            lanes,
            meters: Meters::default(),
            scaler,
            step: 0,
            drawn: 0,
            has_compared: false,
            traced: (traced, 0),
            bubble: None,
            profiled: None,
            chosen_for: 0,
        })
    }

    /// The model. With pipeline stages, what other stages hold is empty in it, and under ZeRO v3, or with offloaded
    /// parameters, all that lies elsewhere: see [`inference`](Self::inference).
    pub fn model(&self) -> &M {
        self.params.model()
    }

    /// The ordinary Burn module; the engine ends. With pipeline stages, what other stages hold is empty in it, and under
    /// ZeRO v3, or with offloaded parameters, all that lies elsewhere: [`inference`](Self::inference) has the whole.
    pub fn into_inner(self) -> M {
        self.params.into_model()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The optimizer's name and settings.
    pub fn optimizer(&self) -> (&'static str, &Value) {
        (self.optimizer_settings.0, &self.optimizer_settings.1)
    }

    /// The rank's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The device of this rank, with autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The micro-batches of a step of [`step_whole`](Self::step_whole), from whichever of the batch sizes are given.
    pub(crate) fn num_micro_batch(&self) -> usize {
        self.plan.micro_batches
    }

    /// How many samples were drawn for [`step_whole`](Self::step_whole).
    pub(crate) fn drawn(&self) -> u64 {
        self.drawn
    }

    /// Counts samples that were drawn.
    pub(crate) fn draw(&mut self, samples: u64) {
        self.drawn += samples;
    }

    /// Whether the types of parameters are to be logged (`amp.debug_log`).
    pub(crate) fn logs_types(&self) -> bool {
        self.plan.settings.debug_log
    }

    /// The loss scale and the steps that were skipped, under mixed precision.
    pub fn loss_scaler(&self) -> Option<&LossScaler> {
        self.scaler.as_ref()
    }

    /// How many steps were made; those that were skipped do not count.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// The parameters, whole, by path. Collective.
    pub fn parameters(&self) -> Result<BTreeMap<String, TensorData>> {
        self.gather(&Source::Parameters)
    }

    /// The tensors of the optimizer's state that have their parameter's shape, whole, by path and field. Collective.
    pub fn optimizer_state(&self) -> Result<BTreeMap<String, TensorData>> {
        self.gather(&Source::Optimizer(self.states()?))
    }

    fn gather(&self, source: &Source<'_>) -> Result<BTreeMap<String, TensorData>> {
        gather::gather(&self.params, &self.plan, &self.context, source)
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
        self.context.begin(Pass { step: self.step, training: false, samples: [].into(), empty: false });
        let device = self.device.clone().without_autodiff();
        let model = self.params.whole(self.model().valid(), &self.plan.params, &self.context, &device)?;
        gather::whole(model, &self.plan, &self.context)
    }

    /// The ways to the other stages. What comes lies on `device`.
    fn links<'a>(&'a self, device: &'a Device) -> Links<'a> {
        Links::new(&self.plan.stages, self.lanes.stages(), self.lanes.widths(), device)
    }

    fn begin<B>(&self, micro_batch: &MicroBatch<B>, training: bool) {
        self.context.begin(Pass {
            step: self.step,
            training,
            samples: micro_batch.samples.clone(),
            empty: micro_batch.empty,
        });
    }

    /// Before a segment of a micro-batch's pass is run; the result is dropped when it has been.
    #[must_use]
    fn enter(&self, segment: usize, what: &str, micro_batch: usize) -> Option<Span> {
        self.context.enter(segment);
        self.context.span(|| format!("{what} {micro_batch} segment {segment}"))
    }
}

/// Runs `f`; a collective that failed inside forward or backward unwinds, and comes back as its error.
fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    epl_comm::catch(f)?
}
