//! Where arrays are made.

use std::path::Path;
use std::sync::Arc;

use burn::tensor::DType;

use super::array::{ArrayMemory, FlatArray};
use super::file::ArrayFile;
use super::folder::OffloadFolder;
use super::ledger::{HoldingKind, Ledger};
use crate::error::{Error, Result};
use crate::memory::Tier;

/// A tier with its means; a clone is the same place, with the same bound.
#[derive(Clone, Debug)]
pub struct Storage(StorageTier);

#[derive(Clone, Debug)]
enum StorageTier {
    Host(Ledger),
    Files(Arc<OffloadFolder>),
}

impl Storage {
    /// Host memory.
    pub fn host(ledger: &Ledger) -> Self {
        Self(StorageTier::Host(ledger.clone()))
    }

    /// Files in a folder, of which at most `resident_bytes` are in memory at a time. The files have no names.
    ///
    /// # Errors
    ///
    /// When the folder is missing, no file can be made in it, or the bound is too small for the windows of an update.
    pub fn files(folder: impl AsRef<Path>, resident_bytes: u64, ledger: &Ledger) -> Result<Self> {
        Ok(Self(StorageTier::Files(Arc::new(OffloadFolder::new(folder.as_ref(), resident_bytes, ledger)?))))
    }

    /// The tier of the arrays that are made here.
    pub fn tier(&self) -> Tier {
        match self.0 {
            StorageTier::Host(_) => Tier::Host,
            StorageTier::Files(_) => Tier::Disk,
        }
    }

    /// An array of so many zeros.
    ///
    /// # Errors
    ///
    /// When the element type is no float of 16, 32 or 64 bits, or the disk has no room.
    pub fn zeros(&self, len: usize, dtype: DType) -> Result<FlatArray> {
        if !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::invalid(format!(
                "an array of {len} elements of {} cannot be offloaded; it takes f64, f32, f16 or bf16",
                dtype.name()
            )));
        }
        let Some(bytes) = len.checked_mul(dtype.size()).filter(|bytes| isize::try_from(*bytes).is_ok()) else {
            return Err(Error::invalid(format!("an array of {len} elements of {} is too large", dtype.name())));
        };
        let memory = match &self.0 {
            // The system clears pages when they are first touched, so that this takes no time.
            StorageTier::Host(ledger) => {
                let words = vec![0; bytes.div_ceil(8)];
                let _counted = ledger.enter(HoldingKind::Host, 8 * words.len() as u64);
                ArrayMemory::Host { words, _counted }
            }
            StorageTier::Files(folder) => ArrayMemory::File(ArrayFile::zeros(folder, bytes as u64)?),
        };
        Ok(FlatArray { dtype, len, memory })
    }
}
