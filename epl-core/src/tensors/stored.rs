//! The parameters of a checkpoint, as whole tensors: read from whichever slices they were saved in.

use std::ops::Range;
use std::path::Path;

use burn::tensor::TensorData;

use super::source::{TensorInfo, WholeTensors, not_stored};
use crate::checkpoint::{Checkpoint, Region, names};
use crate::error::Result;

/// The parameters of a checkpoint by path: all that the model registers, running statistics and whole numbers included, as
/// a record of Burn has them. Truth values are bytes. What the engine and the optimizer keep is none of it.
///
/// ```no_run
/// # fn main() -> epl_core::Result<()> {
/// use epl_core::tensors::{StoredParameters, save_safetensors};
///
/// // One file that plain Burn loads, one tensor in memory at a time.
/// save_safetensors(&StoredParameters::open("out/numbers/checkpoints/step-800")?, "model.safetensors")
/// # }
/// ```
#[derive(Debug)]
pub struct StoredParameters(Checkpoint);

impl StoredParameters {
    /// Opens the checkpoint in a folder.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::open`].
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Ok(Self(Checkpoint::open(folder)?))
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.0
    }
}

impl WholeTensors for StoredParameters {
    fn names(&self) -> Vec<String> {
        let names = self.0.index().tensors.keys().filter_map(|name| names::parameter(name));
        names.map(str::to_string).collect()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        let entry = self.0.index().tensors.get(&names::of_parameter(name))?;
        // Opening it has checked the type.
        Some(TensorInfo { shape: entry.shape.clone(), dtype: entry.burn_dtype().ok()? })
    }

    fn read(&self, name: &str, ranges: &[Range<usize>]) -> Result<TensorData> {
        let info = self.info(name).ok_or_else(|| not_stored(name))?;
        super::check_ranges(name, &info.shape, ranges)?;
        let flat = self.0.read(&names::of_parameter(name), &Region::of(&info.shape, ranges)?)?;
        let shape: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
        Ok(TensorData::from_bytes(flat.into_parts().0, shape, info.dtype))
    }
}
