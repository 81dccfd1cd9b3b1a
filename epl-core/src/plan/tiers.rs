//! Where each kind of state lies, and the means to put it there.

use std::env;
use std::path::PathBuf;

use crate::config::{Config, OffloadLevel, StateTier};
use crate::error::Result;
use crate::offload::{Ledger, Storage};

/// Where each kind of state lies between its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiers {
    /// Parameters.
    pub parameters: StateTier,
    /// Reduced gradients.
    pub gradients: StateTier,
    /// The optimizer's state.
    pub optimizer_state: StateTier,
}

impl Tiers {
    /// What the options `offload.*` say.
    pub(crate) fn from_config(config: &Config) -> Self {
        let offload = &config.offload;
        let all = match offload.level {
            OffloadLevel::Off => StateTier::Device,
            OffloadLevel::V0 => StateTier::Host,
            OffloadLevel::V1 => StateTier::File,
        };
        Self {
            parameters: offload.parameters.unwrap_or(all),
            gradients: offload.gradients.unwrap_or(all),
            optimizer_state: offload.optimizer_state.unwrap_or(all),
        }
    }

    fn any(self, tier: StateTier) -> bool {
        [self.parameters, self.gradients, self.optimizer_state].contains(&tier)
    }
}

/// What a rank keeps state in, beside its device.
#[derive(Clone, Debug)]
pub(crate) struct Stores {
    pub ledger: Ledger,
    host: Storage,
    /// Where a kind of state lies in files.
    files: Option<Storage>,
}

impl Stores {
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
        let files = Tiers::from_config(config).any(StateTier::File).then(files).transpose()?;
        Ok(Self { host: Storage::host(&ledger), files, ledger })
    }

    /// Host memory.
    pub fn host(&self) -> &Storage {
        &self.host
    }

    /// The means of a tier; none for the device.
    pub fn at(&self, tier: StateTier) -> Option<&Storage> {
        match tier {
            StateTier::Device => None,
            StateTier::Host => Some(&self.host),
            StateTier::File => self.files.as_ref(),
        }
    }
}
