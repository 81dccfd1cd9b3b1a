//! What this rank keeps of a run, from a checkpoint of any layout.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::Engine;
use super::restore_states::StatesOf;
use crate::checkpoint::{Checkpoint, Region};
use crate::error::{Error, Result};
use crate::optim::LossScaleState;
use crate::plan::ParamRecord;
use crate::plan::park::{Chunk, chunk, fill};
use crate::segment::Segmented;

/// What the first rank keeps beside tensors.
#[derive(Serialize, Deserialize)]
pub(super) struct EngineState {
    pub steps: u64,
    /// Samples of [`Engine::step_whole`].
    pub drawn: u64,
    pub optimizer: String,
    /// The 16-bit type in which segments computed.
    pub half: Option<String>,
    pub loss_scale: Option<LossScaleState>,
}

impl<M: Segmented> Engine<M> {
    /// Goes on where the checkpoint in a folder stands, whichever layout saved it. This rank reads what it keeps, tensor by
    /// tensor. No communication; every rank must do it.
    ///
    /// # Errors
    ///
    /// When there is no checkpoint, it is damaged, or of another model or optimizer: the file, and the tensor. What was read
    /// before that is not taken back: the engine is not to be used then.
    pub fn load(&mut self, folder: impl AsRef<Path>) -> Result<()> {
        self.restore(&Arc::new(Checkpoint::open(folder)?))
    }

    /// The same from an opened checkpoint.
    pub(crate) fn restore(&mut self, checkpoint: &Arc<Checkpoint>) -> Result<()> {
        let state = self.state_in(checkpoint)?;
        self.check_names(checkpoint)?;
        let states = StatesOf::find(self, checkpoint)?;
        self.load_model(checkpoint)?;
        for unit in 0..self.parked.0.len() {
            self.load_parked(unit, checkpoint)?;
        }
        states.load(self)?;
        // Of another type the scale follows another law: it begins anew, as where there was none.
        let saved = state.loss_scale.filter(|_| state.half == self.half_name());
        if let (Some(scaler), Some(saved)) = (&self.scaler, saved) {
            self.scaler = Some(scaler.clone().resumed(saved)?);
        }
        (self.step, self.drawn) = (state.steps, state.drawn);
        Ok(())
    }

    /// The 16-bit type in which segments compute, as a checkpoint names it.
    pub(super) fn half_name(&self) -> Option<String> {
        self.plan.half.map(|half| half.choice().to_string())
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
    fn check_names(&self, checkpoint: &Checkpoint) -> Result<()> {
        let mut own: BTreeSet<String> = self.plan.records.iter().map(|record| record.name.clone()).collect();
        own.extend(names_of_others(self.model()));
        let stored = checkpoint.index().tensors.keys().filter_map(|name| name.strip_prefix("model/"));
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

    /// Reads what lies in the model.
    fn load_model(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        let (records, mut failed) = (&self.plan.records, None);
        // Not a clone: the old values go one by one, as the new ones come.
        let model = self.model.take().expect("the model is only away during an update");
        let device = self.device.clone().without_autodiff();
        let read = |number: usize, _: &dyn Fn() -> Tensor<1>| {
            let record = &records[number];
            if !record.held || record.parked || failed.is_some() {
                return None;
            }
            read(record, 0..record.numel(), checkpoint, &device).map_err(|error| failed = Some(error)).ok()
        };
        let model = fill(model, records, true, read);
        let mut others = Others { checkpoint, path: Vec::new(), failed };
        self.model = Some(model.map(&mut others));
        others.failed.map_or(Ok(()), Err)
    }

    /// Reads what this rank keeps of a parked unit.
    fn load_parked(&mut self, number: usize, checkpoint: &Checkpoint) -> Result<()> {
        let (plan, bucket) = (&self.plan, self.plan.unit(number));
        if !plan.is_parked(bucket) {
            return Ok(());
        }
        let read = |member: &usize, device: &Device| {
            read(&plan.records[*member], plan.kept_range(*member), checkpoint, device)
        };
        match &mut self.parked.0[number] {
            Chunk::Away(array) => {
                let mut end = 0;
                for member in &bucket.members {
                    array.write(end, &read(member, &Device::flex())?)?;
                    end += plan.kept_range(*member).len();
                }
            }
            Chunk::Device(values) => {
                let device = values.device();
                let own = bucket.members.iter().map(|member| read(member, &device)).collect::<Result<_>>()?;
                *values = chunk(bucket, own, plan.kept_len(bucket), &device);
            }
        }
        Ok(())
    }
}

/// Reads some elements of this rank's slice of a parameter.
fn read(
    record: &ParamRecord,
    range: core::ops::Range<usize>,
    checkpoint: &Checkpoint,
    device: &Device,
) -> Result<Tensor<1>> {
    let region = Region::of(&record.global_shape, &record.ranges())?.part(range);
    let data = checkpoint.read(&format!("model/{}", record.name), &region)?;
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

/// The paths of what has no gradient and no record.
fn names_of_others<M: Module>(model: &M) -> BTreeSet<String> {
    #[derive(Default)]
    struct Names(Vec<String>, BTreeSet<String>);
    impl ModuleVisitor for Names {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.0.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.0.pop();
        }

        fn visit_int<const D: usize>(&mut self, _param: &Param<Tensor<D, Int>>) {
            self.1.insert(self.0.join("."));
        }

        fn visit_bool<const D: usize>(&mut self, _param: &Param<Tensor<D, Bool>>) {
            self.1.insert(self.0.join("."));
        }
    }
    let mut names = Names::default();
    model.visit(&mut names);
    names.1
}

/// Reads what has no gradient and no record, whole.
struct Others<'a> {
    checkpoint: &'a Checkpoint,
    path: Vec<String>,
    failed: Option<Error>,
}

impl Others<'_> {
    fn read(&mut self, shape: Vec<usize>) -> Option<TensorData> {
        if self.failed.is_some() {
            return None;
        }
        let name = format!("model/{}", self.path.join("."));
        let data = self.checkpoint.read_whole(&name).and_then(|data| match data.shape().to_vec() == shape {
            true => Ok(data),
            false => Err(Error::Parameter {
                name: name.clone(),
                reason: format!("has shape {:?} in the checkpoint, and {shape:?} in this model", data.shape()),
            }),
        });
        data.map_err(|error| self.failed = Some(error)).ok()
    }
}

impl ModuleMapper for Others<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.read(param.base().dims().to_vec()) {
            Some(data) => param.map(|old| Tensor::from_data(data, (&old.device(), old.dtype()))),
            None => param,
        }
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        match self.read(param.base().dims().to_vec()) {
            Some(data) => param.map(|old| Tensor::from_data(data.convert::<bool>(), &old.device())),
            None => param,
        }
    }
}
