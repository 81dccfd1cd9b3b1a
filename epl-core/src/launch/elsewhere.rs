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
        )
    }

    /// The first rank of a world that is only thought of, as large as a configuration asks for, on this rank's device. Calls of
    /// segments may be recorded there.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration.
    pub(crate) fn in_thought(&self, config: Config) -> Result<Self> {
        thought_of(config, 0, |config, mesh, world, trace| {
            let cluster = Cluster::local(mesh.world_size())?;
            Self::on_cluster(config, (cluster, self.place().device().clone()), mesh, world, Some(trace))
        })
        .map(|(epl, _)| epl)
    }
}

/// A rank of a world that is only thought of, as large as a configuration asks for; and what it would send.
pub(super) fn thought_of<T>(
    mut config: Config,
    rank: usize,
    f: impl FnOnce(Config, Mesh, epl_comm::ProcessGroup, Trace) -> Result<T>,
) -> Result<(T, dry::Traffic)> {
    config.validate()?;
    let mesh = Mesh::from_config(&config)?;
    let (world, traffic) = dry::world(mesh.world_size(), rank)?;
    // With what is only said beside a file.
    config.profile = ProfileConfig { segments: config.profile.segments, ..Config::default().profile };
    // Switched on where the calls of segments are wanted.
    let trace = Trace::new();
    trace.switch(false);
    let value = epl_comm::catch(|| f(config, mesh, world, trace))??;
    Ok((value, traffic))
}
