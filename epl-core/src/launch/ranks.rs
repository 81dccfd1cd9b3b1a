//! The ranks of this process, over what their run is carried by.

use epl_comm::ProcessGroup;

#[cfg(feature = "mpi")]
use super::joined::over_mpi;
use super::joined::{Joined, of_rank, threads};
#[cfg(feature = "cuda")]
use super::nccl;
use crate::config::Config;
use crate::error::Result;

/// Runs `f` on every rank of this process. The first failure comes with its rank.
pub(super) fn run<T: Send>(
    joined: &Joined,
    config: &Config,
    f: impl Fn(ProcessGroup) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    match joined.carrier {
        #[cfg(feature = "mpi")]
        epl_comm::Carrier::Mpi => over_mpi(config, joined.cluster.local_ranks().len())?.run(f).map_err(of_rank),
        #[cfg(feature = "cuda")]
        epl_comm::Carrier::Nccl => nccl::run(joined, config, f),
        _ => threads(config, joined.mesh.world_size()).run(f).map_err(of_rank),
    }
}
