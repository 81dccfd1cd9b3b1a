//! What a step changes, and a checkpoint keeps; and what a step runs on.

use std::cell::RefCell;
use std::collections::BTreeSet;

use burn::tensor::Device;
use serde_json::Value;

use super::away::{AwayGradients, OnePassUpdate};
use super::communicators::Communicators;
use crate::error::Result;
use crate::model::context::Context;
use crate::model::segment::Model;
use crate::optim::{LossScaler, PerParameter, ResolvedOptimizer};
use crate::params::store::ParamStore;
use crate::plan::Plan;

/// What a step runs on, and does not change.
#[derive(Clone, Copy)]
pub(super) struct Setup<'a> {
    pub plan: &'a Plan,
    pub context: &'a Context,
    /// With autodiff.
    pub device: &'a Device,
    pub communicators: &'a Communicators,
}

/// The parameters of a rank, and what training keeps beside them.
pub(super) struct ModelState<M> {
    /// The model, and what of its parameters lies elsewhere between their uses.
    pub params: ParamStore<M>,
    /// Where gradients lie away from the device; borrowed while a step accumulates them.
    pub away: Option<RefCell<AwayGradients>>,
    /// Where the optimizer's state lies away from the device, and is updated there.
    pub one_pass: Option<OnePassUpdate>,
    pub optimizer: PerParameter,
    /// Its name and what it was made with.
    pub optimizer_settings: (&'static str, Value),
    /// Under mixed precision.
    pub scaler: Option<LossScaler>,
    /// Steps that were made; those that were skipped do not count.
    pub steps: u64,
    /// Trained parameters held here that no step had a gradient of, by the numbers of their records; none before the first step.
    pub untouched: BTreeSet<usize>,
    /// Samples that were drawn for [`Engine::train_batch`](super::Engine::train_batch).
    pub drawn: u64,
}

impl<M: Model> ModelState<M> {
    /// That of a model that is laid out for this optimizer, before its first step.
    ///
    /// # Errors
    ///
    /// When the optimizer would compute something else under this layout, or there is no room
    /// away from the device.
    pub fn new(params: ParamStore<M>, plan: &Plan, optimizer: ResolvedOptimizer) -> Result<Self> {
        optimizer.check(plan)?;
        Ok(Self {
            optimizer: optimizer.per_parameter(plan.records()),
            away: AwayGradients::new(plan, params.storage())?.map(RefCell::new),
            one_pass: OnePassUpdate::new(plan, params.storage(), &optimizer)?,
            params,
            optimizer_settings: (optimizer.name, optimizer.settings),
            scaler: plan.half.map(|half| LossScaler::new(half.choice(), plan.settings.loss_scale)),
            steps: 0,
            untouched: BTreeSet::new(),
            drawn: 0,
        })
    }

    /// What the loss is multiplied by before it is differentiated.
    pub fn loss_scale(&self) -> f64 {
        self.scaler.as_ref().map_or(1.0, LossScaler::scale)
    }
}
