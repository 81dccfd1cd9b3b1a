//! A rank in another layout, or in a world that is only thought of.

use epl_comm::{Trace, dry};

use super::epl::Epl;
use crate::config::{Config, ProfileConfig};
use crate::error::Result;
use crate::topology::cluster::{Cluster, Mesh};

impl Epl {
    /// The same rank under another configuration, such as one that [`search`](Self::search) found. What was built before belongs to
    /// the one before. Collective.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration.
    pub fn with_config(&self, config: Config) -> Result<Self> {
        config.validate()?;
        let mesh = Mesh::on_cluster(self.cluster(), &config)?;
        Self::joined(
            config,
            (self.cluster().clone(), self.place().device().clone()),
            mesh,
            self.world().clone(),
            self.trace(),
            self.wanted().cloned(),
        )
        .map(|epl| epl.with_discovered(self.discovered().clone()))
    }

    /// The first rank of a world that is only thought of, as large as a configuration asks for, on this rank's device. Calls of
    /// segments may be recorded there.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration.
    pub(crate) fn in_thought(&self, config: Config) -> Result<Self> {
        thought_of(config, None, 0, |config, (cluster, mesh), world, trace| {
            let device = self.place().device().clone();
            // It serves a measure, and is no engine of the program's.
            Self::wanting(config, (cluster, device), mesh, world, Some(trace), None)
        })
        .map(|(epl, _)| epl.with_discovered(self.discovered().clone()))
    }
}

/// A rank of a world that is only thought of, of a cluster or as large as a configuration asks for; and what it would send.
pub(super) fn thought_of<T>(
    mut config: Config,
    cluster: Option<Cluster>,
    rank: usize,
    f: impl FnOnce(Config, (Cluster, Mesh), epl_comm::ProcessGroup, Trace) -> Result<T>,
) -> Result<(T, dry::Traffic)> {
    config.validate()?;
    let (cluster, mesh) = match cluster {
        Some(cluster) => (cluster.clone(), Mesh::on_cluster(&cluster, &config)?),
        None => {
            let mesh = Mesh::from_config(&config)?;
            (Cluster::local(mesh.world_size())?, mesh)
        }
    };
    let (world, traffic) = dry::world(mesh.world_size(), rank)?;
    // With what is only said beside a file.
    config.profile = ProfileConfig { segments: config.profile.segments, ..Config::default().profile };
    // Switched on where the calls of segments are wanted.
    let trace = Trace::new();
    trace.switch(false);
    let value = epl_comm::catch(|| f(config, (cluster, mesh), world, trace))??;
    Ok((value, traffic))
}
