//! The means to put state away from the device.

use std::env;
use std::path::PathBuf;

use super::Bucket;
use super::residency::Home;
use crate::config::Config;
use crate::error::Result;
use crate::memory::{Tier, Tiers};
use crate::offload::{Ledger, Storage};

/// What a rank keeps state in, beside its device.
#[derive(Clone, Debug)]
pub(crate) struct StateStorage {
    pub ledger: Ledger,
    host: Storage,
    /// Where a kind of state lies in files.
    files: Option<Storage>,
}

impl StateStorage {
    /// Those that the options `offload.*` need.
    ///
    /// # Errors
    ///
    /// When there is no folder for files, or it cannot be written.
    pub fn from_config(config: &Config) -> Result<Self> {
        let (ledger, offload) = (Ledger::new(), &config.offload);
        let folder = match &*offload.folder {
            "" => env::temp_dir(),
            folder => PathBuf::from(folder),
        };
        let files = || Storage::files(&folder, offload.resident_bytes, &ledger);
        let files = Tiers::from_config(config).any(Tier::Disk).then(files).transpose()?;
        Ok(Self { host: Storage::host(&ledger), files, ledger })
    }

    /// Host memory.
    pub fn host(&self) -> &Storage {
        &self.host
    }

    /// The means of a tier; none for the device.
    pub fn at(&self, tier: Tier) -> Option<&Storage> {
        match tier {
            Tier::Device => None,
            Tier::Host => Some(&self.host),
            Tier::Disk => self.files.as_ref(),
        }
    }

    /// The means where a unit's gradients wait for the update; none where they are on the device.
    pub fn of_gradients(&self, unit: &Bucket) -> Option<&Storage> {
        self.at(unit.residency.gradients)
    }

    /// The means where a unit's parameters lie; none where they are on the device.
    pub fn of(&self, unit: &Bucket) -> Option<&Storage> {
        match unit.residency.parameters {
            Home::Model => None,
            Home::Flat { tier, .. } => self.at(tier),
        }
    }
}
