//! What this rank keeps of a run, from a checkpoint of any layout.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use burn::module::Param;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::restore_states::StatesOf;
use super::state::{ModelState, Setup};
use crate::checkpoint::{Checkpoint, Region, names};
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::optim::LossScaleState;
use crate::params::ParamRecord;
use crate::params::walk::{self, At, Change, Visit};
use crate::plan::Plan;

/// What the first rank keeps beside tensors.
#[derive(Serialize, Deserialize)]
pub(super) struct EngineState {
    pub steps: u64,
    /// Samples of [`Engine::train_batch`](super::Engine::train_batch).
    pub drawn: u64,
    pub optimizer: String,
    /// The 16-bit type in which segments computed.
    pub half: Option<String>,
    pub loss_scale: Option<LossScaleState>,
}

impl<M: Model> ModelState<M> {
    /// Goes on where a checkpoint stands: see [`Engine::load`](super::Engine::load).
    pub fn restore(&mut self, setup: Setup<'_>, checkpoint: &Arc<Checkpoint>) -> Result<()> {
        let state = self.state_in(checkpoint)?;
        self.check_names(setup.plan, checkpoint)?;
        let states = StatesOf::find(setup.plan, &**checkpoint)?;
        self.load_model(setup, checkpoint)?;
        states.load(setup, self)?;
        // Of another type the scale follows another law: it begins anew, as where there was none.
        let saved = state.loss_scale.filter(|_| state.half == half_name(setup.plan));
        if let (Some(scaler), Some(saved)) = (&self.scaler, saved) {
            self.scaler = Some(scaler.clone().resumed(saved)?);
        }
        (self.steps, self.drawn) = (state.steps, state.drawn);
        Ok(())
    }

    fn state_in(&self, checkpoint: &Checkpoint) -> Result<EngineState> {
        let failed = |reason: String| Error::file(checkpoint.folder(), reason);
        let value = checkpoint.index().state.get("engine").cloned();
        let value = value.ok_or_else(|| failed("it says nothing of an engine; it is no checkpoint of a run".into()))?;
        let state: EngineState =
            serde_json::from_value(value).map_err(|error| failed(format!("the state of the engine: {error}")))?;
        match state.optimizer == self.optimizer_settings.0 {
            true => Ok(state),
            false => Err(failed(format!(
                "it was saved with the optimizer {}, and this run has {}; go on with the same",
                state.optimizer, self.optimizer_settings.0
            ))),
        }
    }

    /// Whether the checkpoint has the parameters of this model, and no others.
    fn check_names(&self, plan: &Plan, checkpoint: &Checkpoint) -> Result<()> {
        let mut own: BTreeSet<String> = plan.records().iter().map(|record| record.name.clone()).collect();
        own.extend(self.names_of_others(plan));
        let stored = checkpoint.index().tensors.keys().filter_map(|name| names::parameter(name));
        let stored: BTreeSet<String> = stored.map(str::to_string).collect();
        let said = |names: Vec<&String>| {
            let shown: Vec<&str> = names.iter().take(4).map(|name| name.as_str()).collect();
            format!("{}{}", shown.join(", "), if names.len() > shown.len() { ", …" } else { "" })
        };
        let (missing, more): (Vec<_>, Vec<_>) = (own.difference(&stored).collect(), stored.difference(&own).collect());
        match (missing.is_empty(), more.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(Error::file(
                checkpoint.folder(),
                format!(
                    "it lacks {} of the {} parameters of this model: {}; load it into the model that saved it",
                    missing.len(),
                    own.len(),
                    said(missing)
                ),
            )),
            (true, false) => Err(Error::file(
                checkpoint.folder(),
                format!(
                    "it has {} parameters that this model does not: {}; load it into the model that saved it",
                    more.len(),
                    said(more)
                ),
            )),
        }
    }

    /// Reads the parameters, and what has no record.
    fn load_model(&mut self, setup: Setup<'_>, checkpoint: &Checkpoint) -> Result<()> {
        let (table, device) = (&setup.plan.params, setup.device.clone().without_autodiff());
        self.params.load(table, &device, |record, range, device| read(record, range, checkpoint, device))?;
        let mut others = Others { checkpoint, failed: None };
        self.params.change(|model| {
            let Ok(model) = walk::change(model, &table.records, &mut others);
            (model, ())
        });
        others.failed.map_or(Ok(()), Err)
    }

    /// The paths of what has no gradient and no record.
    fn names_of_others(&self, plan: &Plan) -> BTreeSet<String> {
        struct Names(BTreeSet<String>);
        impl Visit for Names {
            type Error = Infallible;

            fn float<const D: usize>(&mut self, _: At<'_>, _: &Param<Tensor<D>>) -> Result<(), Infallible> {
                Ok(())
            }

            fn other(&mut self, path: &str, _: &dyn Fn() -> TensorData) -> Result<(), Infallible> {
                self.0.insert(path.to_string());
                Ok(())
            }
        }
        let mut names = Names(BTreeSet::new());
        let Ok(()) = walk::visit(self.params.model(), plan.records(), &mut names);
        names.0
    }
}

/// The 16-bit type in which segments compute, as a checkpoint names it.
pub(super) fn half_name(plan: &Plan) -> Option<String> {
    plan.half.map(|half| half.choice().to_string())
}

/// Reads some elements of this rank's slice of a parameter.
fn read(
    record: &ParamRecord,
    range: core::ops::Range<usize>,
    checkpoint: &Checkpoint,
    device: &Device,
) -> Result<Tensor<1>> {
    let region = Region::of(&record.global_shape, &record.ranges())?.part(range);
    let data = checkpoint.read(&names::of_parameter(&record.name), &region)?;
    match data.dtype() == record.dtype {
        true => Ok(Tensor::from_data(data, (device, record.dtype))),
        false => Err(Error::Parameter {
            name: record.name.clone(),
            reason: format!(
                "is of {} in {}, and of {} in this model; configure the device as in the run that saved it",
                data.dtype().name(),
                checkpoint.folder().display(),
                record.dtype.name()
            ),
        }),
    }
}

/// Reads what has no gradient and no record, whole.
fn read_other(path: &str, shape: &[usize], checkpoint: &Checkpoint) -> Result<TensorData> {
    let name = names::of_parameter(path);
    let data = checkpoint.read_whole(&name)?;
    match data.shape().to_vec() == shape {
        true => Ok(data),
        false => {
            let reason = format!("has shape {:?} in the checkpoint, and {shape:?} in this model", data.shape());
            Err(Error::Parameter { name, reason })
        }
    }
}

/// Reads what has no gradient and no record, one after the other; what fails leaves the rest as it is, and the model whole.
struct Others<'a> {
    checkpoint: &'a Checkpoint,
    failed: Option<Error>,
}

impl Change for Others<'_> {
    type Error = Infallible;

    fn float<const D: usize>(&mut self, _: At<'_>, param: Param<Tensor<D>>) -> Result<Param<Tensor<D>>, Infallible> {
        Ok(param)
    }

    fn other(&mut self, path: &str, shape: &[usize]) -> Result<Option<TensorData>, Infallible> {
        if self.failed.is_some() {
            return Ok(None);
        }
        let data = read_other(path, shape, self.checkpoint);
        Ok(data.map_err(|error| self.failed = Some(error)).ok())
    }
}
