//! What one rank holds, written into a folder and read again.

use std::fs;
use std::path::{Path, PathBuf};

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use burn_pack::Reader;

use super::Engine;
use super::away::OnePassUpdate;
use crate::error::{Error, Result};
use crate::json::json;
use crate::offload::{Entry, HostState};
use crate::plan::park::Chunk;
use crate::plan::{Bucket, draw};
use crate::segment::Segmented;

/// A flat array, as a module.
#[derive(Module, Debug)]
struct Array {
    values: Param<Tensor<1>>,
}

impl<M: Segmented> Engine<M> {
    /// Writes this rank's parameters and optimizer state into a folder. What is parked is written array by array, so that
    /// no more than one is in memory twice.
    pub fn save_rank(&self, folder: &Path) -> Result<()> {
        let path = folder.join("model.bpk");
        self.model().clone().save_file(&path).map_err(|error| Error::file(&path, error))?;
        for (unit, chunk) in self.parked() {
            let (path, values) = (of_unit(folder, "parameters", unit), chunk.read(&Device::flex())?);
            let array = Array { values: Param::from_tensor(values) };
            array.save_file(&path).map_err(|error| Error::file(&path, error))?;
        }
        if let Some(scaler) = &self.scaler {
            let path = scale_in(folder);
            let text = json("loss scale", scaler.state())?.to_string();
            fs::write(&path, text).map_err(|error| Error::file(&path, error))?;
        }
        for (unit, (state, bucket)) in self.states().enumerate() {
            let path = of_unit(folder, "optimizer", unit);
            let writer = state.record(&OnePassUpdate::entries(&self.plan, bucket))?;
            writer.write_to_file(&path).map_err(|error| Error::file(&path, error))?;
        }
        let path = folder.join("optimizer.bpk");
        self.optimizer.save(&path).map_err(|error| Error::file(&path, error))
    }

    /// Reads this rank's parameters and optimizer state from a folder, and goes on after `step` steps.
    pub fn load_rank(&mut self, folder: &Path, step: u64) -> Result<()> {
        let path = folder.join("model.bpk");
        let model = self.model().clone().try_load_file(&path).map_err(|error| Error::file(&path, error))?;
        let model = draw::adopt(model, &self.plan.records)?;
        let parked: Vec<usize> = self.parked().map(|(unit, _)| unit).collect();
        for unit in parked {
            self.load_parameters(unit, &of_unit(folder, "parameters", unit))?;
        }
        if let Some(scaler) = self.scaler.take() {
            let path = scale_in(folder);
            let text = fs::read(&path).map_err(|error| Error::file(&path, error))?;
            let state = serde_json::from_slice(&text).map_err(|error| Error::file(&path, error))?;
            self.scaler = Some(scaler.resumed(state)?);
        }
        let entries: Vec<Vec<Entry>> =
            self.states().map(|(_, bucket)| OnePassUpdate::entries(&self.plan, bucket)).collect();
        let states = self.one_pass.iter_mut().flat_map(|one_pass| &mut one_pass.states);
        for (unit, (state, entries)) in states.zip(entries).enumerate() {
            let path = of_unit(folder, "optimizer", unit);
            let reader = Reader::from_file(&path).map_err(|error| Error::file(&path, error))?;
            state.load(reader, &entries)?;
        }
        let path = folder.join("optimizer.bpk");
        let optimizer = self.optimizer.clone().load(&path).map_err(|error| Error::file(&path, error))?;
        (self.model, self.optimizer, self.step) = (Some(model), optimizer, step);
        Ok(())
    }

    fn load_parameters(&mut self, unit: usize, path: &Path) -> Result<()> {
        let bucket = self.plan.unit(unit);
        let (device, len) = (self.device.clone().without_autodiff(), self.plan.kept_len(bucket));
        let room = Array { values: Param::from_tensor(Tensor::empty([len], (&device, bucket.dtype))) };
        let array = room.try_load_file(path).map_err(|error| Error::file(path, error))?;
        self.parked.0[unit].write(0, array.values.into_value().set_require_grad(false))
    }

    /// What is parked, by the numbers of the units.
    fn parked(&self) -> impl Iterator<Item = (usize, &Chunk)> {
        let units = self.plan.units().zip(&self.parked.0).enumerate();
        units.filter(|(_, (unit, _))| self.plan.is_parked(unit)).map(|(number, (_, chunk))| (number, chunk))
    }

    /// The optimizer's state away from the device.
    fn states(&self) -> impl Iterator<Item = (&HostState, &Bucket)> {
        self.one_pass.iter().flat_map(|one_pass| one_pass.states.iter().zip(self.plan.units()))
    }
}

fn of_unit(folder: &Path, what: &str, unit: usize) -> PathBuf {
    folder.join(format!("{what}.{unit}.bpk"))
}

fn scale_in(folder: &Path) -> PathBuf {
    folder.join("loss_scale.json")
}
