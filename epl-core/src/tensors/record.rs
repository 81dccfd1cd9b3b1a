//! Burn's records, both ways: what plain Burn saved into a laid out model, and whole tensors as a file that plain Burn
//! loads.
//!
//! ```text
//! plain Burn   model.save_into(&mut BurnpackStore::from_file("net.bpk"))  ─▶ BurnRecord::open ─▶ LaidOutModel::assign
//! Engine::parameters ─▶ save_burnpack, save_safetensors  ─▶  model.load_from(&mut BurnpackStore::from_file("net.bpk"))
//! ```
//!
//! ```
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::SgdConfig;
//! use burn::store::{BurnpackStore, ModuleSnapshot};
//! use burn::tensor::{Device, Tensor};
//! use epl_core::tensors::{AssignMap, BurnRecord, save_burnpack};
//! use epl_core::{Config, Engine, EngineSettings, WithLoss, launch};
//!
//! # let folder = tempfile::tempdir().expect("there is room for a folder");
//! # let (old, new) = (folder.path().join("old.bpk"), folder.path().join("new.bpk"));
//! let plain = LinearConfig::new(3, 2).init(&Device::default());
//! plain.save_into(&mut BurnpackStore::from_file(&old)).expect("a record is written");
//!
//! let record = BurnRecord::open(&old)?;
//! let config = Config::new().with("cluster.ranks", 2)?;
//! launch(&config, |epl| {
//!     let loss = |net: &Linear, rows: &Tensor<2>| net.forward(rows.clone()).powi_scalar(2).mean();
//!     let built = epl.build(|at| WithLoss::new(LinearConfig::new(3, 2).init(at), loss))?;
//!     let built = built.assign(&record, &AssignMap::identity())?;
//!     let mut engine = Engine::new(built, &SgdConfig::new(), EngineSettings::default())?;
//!     engine.train_batch(&Tensor::ones([4, 3], epl.place().device()), 0.1)?;
//!     let parameters = engine.parameters()?; // by all ranks together
//!     if epl.context().world().rank() == 0 { save_burnpack(parameters, &new) } else { Ok(()) }
//! })?;
//!
//! let mut trained = LinearConfig::new(3, 2).init(&Device::default());
//! trained.load_from(&mut BurnpackStore::from_file(&new)).expect("plain Burn loads it");
//! # assert_ne!(trained.weight.val().into_data(), plain.weight.val().into_data());
//! # Ok::<_, epl_core::Error>(())
//! ```
//!
//! Parameters are named by their paths on both sides, and an ordinary module has the same paths in an engine, under
//! [`WithLoss`](crate::WithLoss) and [`Chain`](crate::Chain) too.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use burn::store::{BurnpackStore, ModuleStore, SafetensorsStore, bridge};
use burn::tensor::{Bytes, TensorData};
use burn_pack::Writer;

use super::slice::cut;
use super::source::{TensorInfo, WholeTensors, check_ranges, not_stored};
use super::stream::{Streamed, write_safetensors};
use crate::error::{Error, Result};

/// The tensors of a record that Burn saved. Opening it reads what it holds; values are read when asked for.
pub struct BurnRecord(BTreeMap<String, burn_pack::Tensor>);

impl BurnRecord {
    /// Opens a burnpack file (`.bpk`), or a safetensors file (`.safetensors`).
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be read or is another kind of file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let opened = match path.extension().and_then(|extension| extension.to_str()) {
            Some("bpk") => Self::of(&mut BurnpackStore::from_file(path)),
            Some("safetensors") => Self::of(&mut SafetensorsStore::from_file(path)),
            _ => return Err(Error::file(path, "should end with `.bpk` or `.safetensors`")),
        };
        opened.map_err(|error| Error::file(path, error))
    }

    /// What any store of Burn holds, under the names that it gives them: one that renames, or reads another format.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub fn of<S: ModuleStore>(store: &mut S) -> Result<Self> {
        let tensors = store.get_all_tensors().map_err(|error| Error::invalid(format!("{error:?}")))?;
        Ok(Self(tensors.clone()))
    }
}

impl WholeTensors for BurnRecord {
    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.0.get(name).map(|tensor| TensorInfo { shape: tensor.shape.to_vec(), dtype: tensor.dtype })
    }

    /// Burn reads whole tensors only: one is in memory for as long as its slice is taken.
    fn read(&self, name: &str, ranges: &[Range<usize>]) -> Result<TensorData> {
        let tensor = self.0.get(name).ok_or_else(|| not_stored(name))?;
        check_ranges(name, &tensor.shape.to_vec(), ranges)?;
        let unreadable = |error| Error::Parameter { name: name.to_string(), reason: format!("{error:?}") };
        Ok(cut(bridge::to_data(tensor).map_err(unreadable)?, ranges))
    }
}

/// Writes a burnpack file, Burn's own format, tensor by tensor; what was there is replaced once it is whole.
///
/// # Errors
///
/// When a tensor cannot be read, or the file not be written.
pub fn save_burnpack(tensors: impl WholeTensors + Send + Sync + 'static, path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let tensors = Arc::new(tensors);
    let deferred = |name: String| {
        let info = tensors.info(&name).ok_or_else(|| not_stored(&name))?;
        let (tensors, stored, bytes) = (tensors.clone(), name.clone(), info.bytes());
        let read = move || match tensors.read_whole(&stored) {
            Ok(data) => Ok(Bytes::from_bytes_vec(data.as_bytes().to_vec())),
            Err(error) => Err(burn_pack::Error::IoError(error.to_string())),
        };
        Ok(burn_pack::Tensor::deferred(name, info.dtype, info.shape, None, bytes, read))
    };
    let entries = tensors.names().into_iter().map(deferred).collect::<Result<Vec<_>>>()?;
    let writer = BurnpackStore::default_metadata()
        .iter()
        .fold(Writer::new(entries), |writer, (key, value)| writer.with_metadata(key, value));
    writer.auto_extension(false).write_to_file(path).map_err(|error| Error::file(path, format!("{error:?}")))
}

/// Writes a safetensors file that Burn's `SafetensorsStore` loads, tensor by tensor; what was there is replaced once it is
/// whole.
///
/// # Errors
///
/// When a tensor cannot be read, or the file not be written.
pub fn save_safetensors(tensors: &impl WholeTensors, path: impl AsRef<Path>) -> Result<()> {
    let streamed = |name: String| {
        let info = tensors.info(&name).ok_or_else(|| not_stored(&name))?;
        let stored = name.clone();
        Ok(Streamed { name, info, read: Box::new(move || tensors.read_whole(&stored)) })
    };
    let entries = tensors.names().into_iter().map(streamed).collect::<Result<Vec<_>>>()?;
    write_safetensors(path.as_ref(), &[("format", "safetensors"), ("producer", "burn")], entries)?.publish()
}
