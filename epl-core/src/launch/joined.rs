//! Which workers there are, and over what their ranks communicate.

use core::time::Duration;

use epl_comm::{ProcessGroup, Rank, local};

use crate::cluster::{Cluster, Mesh};
use crate::config::Config;
use crate::error::{Error, Result};

/// The world that this process is in.
pub(super) struct Joined {
    pub(super) cluster: Cluster,
    pub(super) mesh: Mesh,
}

impl Joined {
    /// Reads from the configuration and the environment which ranks there are.
    pub(super) fn new(config: &Config) -> Result<Self> {
        let mesh = Mesh::from_config(config)?;
        Ok(Self { cluster: Cluster::local(mesh.world_size())?, mesh })
    }

    /// Runs `f` on every rank of this process.
    pub(super) fn run<T: Send>(
        &self,
        config: &Config,
        f: impl Fn(ProcessGroup) -> Result<T> + Sync,
    ) -> Result<Vec<T>, (Rank, Error)> {
        threads(config, self.mesh.world_size()).run(f)
    }
}

/// Ranks that are threads of this process.
fn threads(config: &Config, ranks: usize) -> local::Launcher {
    let launcher = local::Launcher::new(ranks).on_failure(|_, error| {
        if let epl_comm::Error::Timeout { .. } = error {
            // A rank that hangs keeps the run from returning this error.
            eprintln!("error: {error}\nthe run ends when that rank does");
        }
    });
    let launcher = match time_limit(config) {
        Some(limit) => launcher.time_limit(limit),
        None => launcher.no_time_limit(),
    };
    if config.communication.check_order { launcher.check_order() } else { launcher }
}

/// How long a rank waits; a limit too long for a clock is none.
fn time_limit(config: &Config) -> Option<Duration> {
    config.communication.time_limit.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}
