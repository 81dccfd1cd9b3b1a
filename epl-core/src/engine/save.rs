//! What one rank holds, written into a folder and read again.

use std::fs;
use std::path::{Path, PathBuf};

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use super::Engine;
use crate::error::{Error, Result};
use crate::json::json;
use crate::plan::draw;
use crate::plan::park::Parked;
use crate::segment::Segmented;

/// The parameters that lie in shards, as a module.
#[derive(Module, Debug)]
struct Chunks {
    chunks: Vec<Param<Tensor<1>>>,
}

impl Chunks {
    fn of(parked: &Parked) -> Self {
        let chunk = |chunk: &Tensor<1>| Param::from_tensor(chunk.clone());
        Self { chunks: parked.0.iter().map(chunk).collect() }
    }
}

impl<M: Segmented> Engine<M> {
    /// Writes this rank's parameters and optimizer state into a folder.
    pub fn save_rank(&self, folder: &Path) -> Result<()> {
        let path = folder.join("model.bpk");
        self.model().clone().save_file(&path).map_err(|error| Error::file(&path, error))?;
        if self.plan.parks() {
            let path = shards_in(folder);
            Chunks::of(&self.parked).save_file(&path).map_err(|error| Error::file(&path, error))?;
        }
        if let Some(scaler) = &self.scaler {
            let path = scale_in(folder);
            let text = json("loss scale", scaler.state())?.to_string();
            fs::write(&path, text).map_err(|error| Error::file(&path, error))?;
        }
        let path = folder.join("optimizer.bpk");
        self.optimizer.save(&path).map_err(|error| Error::file(&path, error))
    }

    /// Reads this rank's parameters and optimizer state from a folder, and goes on after `step` steps.
    pub fn load_rank(&mut self, folder: &Path, step: u64) -> Result<()> {
        let path = folder.join("model.bpk");
        let model = self.model().clone().try_load_file(&path).map_err(|error| Error::file(&path, error))?;
        let model = draw::adopt(model, &self.plan.records)?;
        if self.plan.parks() {
            let path = shards_in(folder);
            let chunks = Chunks::of(&self.parked).try_load_file(&path).map_err(|error| Error::file(&path, error))?;
            self.parked = Parked(chunks.chunks.into_iter().map(Param::into_value).collect());
        }
        if let Some(scaler) = self.scaler.take() {
            let path = scale_in(folder);
            let text = fs::read(&path).map_err(|error| Error::file(&path, error))?;
            let state = serde_json::from_slice(&text).map_err(|error| Error::file(&path, error))?;
            self.scaler = Some(scaler.resumed(state)?);
        }
        let path = folder.join("optimizer.bpk");
        let optimizer = self.optimizer.clone().load(&path).map_err(|error| Error::file(&path, error))?;
        (self.model, self.optimizer, self.step) = (Some(model), optimizer, step);
        Ok(())
    }
}

fn scale_in(folder: &Path) -> PathBuf {
    folder.join("loss_scale.json")
}

fn shards_in(folder: &Path) -> PathBuf {
    folder.join("shards.bpk")
}
