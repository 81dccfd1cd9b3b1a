//! Which workers there are, and over what their ranks communicate.
//!
//! ```text
//! environment          communication.transport       ranks
//! nothing      ─────▶  threads                       threads of this process
//! epl-launch,  ─────▶  mpi (feature `mpi`)           threads of this process and of others, as one world
//! mpirun, srun         threads, with one worker
//! ```

use core::time::Duration;

use epl_comm::{Carrier, Meeting, ProcessGroup, Rank, Source, Worker, local};

use crate::cluster::{Cluster, Mesh};
use crate::config::{Config, TransportChoice};
use crate::error::{Error, Result};

/// How long a worker waits for the others to come, whatever a collective's limit is: they start together.
const MEET_WITHIN: Duration = Duration::from_secs(5 * 60);

/// The world that this process is in.
pub(super) struct Joined {
    pub(super) cluster: Cluster,
    pub(super) mesh: Mesh,
    carrier: Carrier,
    /// This worker's place among the others, for as long as it runs.
    _meeting: Option<Meeting>,
}

impl Joined {
    /// Reads from the configuration and the environment which ranks there are, and meets the other workers.
    pub(super) fn new(config: &Config) -> Result<Self> {
        let Some(worker) = worker(config)? else {
            let mesh = Mesh::from_config(config)?;
            let cluster = Cluster::local(mesh.world_size())?;
            return Ok(Self { cluster, mesh, carrier: Carrier::Threads, _meeting: None });
        };
        let cluster = Cluster::new(vec![worker.local_ranks(); worker.workers()], worker.worker())?;
        let mesh = Mesh::on_cluster(&cluster, config)?;
        let meeting = worker.meeting_point().is_some().then(|| worker.meet(MEET_WITHIN)).transpose()?;
        Ok(Self { cluster, mesh, carrier: worker.carrier(), _meeting: meeting })
    }

    /// Runs `f` on every rank of this process.
    pub(super) fn run<T: Send>(
        &self,
        config: &Config,
        f: impl Fn(ProcessGroup) -> Result<T> + Sync,
    ) -> Result<Vec<T>, (Rank, Error)> {
        match self.carrier {
            #[cfg(feature = "mpi")]
            Carrier::Mpi => over_mpi(config, self.cluster.local_ranks().len())?.run(f),
            _ => threads(config, self.mesh.world_size()).run(f),
        }
    }
}

/// Who this process is among others; none if it is alone.
fn worker(config: &Config) -> Result<Option<Worker>> {
    let Some(worker) = Worker::from_environment(config.cluster.ranks)? else {
        return match config.communication.transport {
            TransportChoice::Auto | TransportChoice::Threads => Ok(None),
            TransportChoice::Mpi => Worker::new(1, 0, config.cluster.ranks.unwrap_or(1), Carrier::Mpi)
                .map_err(Into::into)
                .and_then(can_carry)
                .map(Some),
        };
    };
    // A job of one process is no different from a program started by hand, unless it is told how many ranks it has.
    if worker.workers() == 1
        && worker.source() != Source::EplLaunch
        && config.communication.transport != TransportChoice::Mpi
    {
        return Ok(None);
    }
    let worker = match config.communication.transport {
        TransportChoice::Auto => worker,
        TransportChoice::Threads => worker.with_carrier(Carrier::Threads)?,
        TransportChoice::Mpi => worker.with_carrier(Carrier::Mpi)?,
    };
    can_carry(worker).map(Some)
}

/// Whether this program has what carries a worker's data.
fn can_carry(worker: Worker) -> Result<Worker> {
    let feature = match worker.carrier() {
        Carrier::Threads => return Ok(worker),
        Carrier::Mpi if cfg!(feature = "mpi") => return Ok(worker),
        carrier => carrier,
    };
    Err(Error::invalid(format!(
        "this process is worker {} of {} ({}), whose data {feature} carries, but the program was built without it; build \
         it with `--features {feature}`, or run all ranks as threads of one process",
        worker.worker(),
        worker.workers(),
        worker.source()
    )))
}

/// Ranks that are threads of this process.
fn threads(config: &Config, ranks: usize) -> local::Launcher {
    let launcher = local::Launcher::new(ranks).on_failure(report);
    let launcher = match time_limit(config) {
        Some(limit) => launcher.time_limit(limit),
        None => launcher.no_time_limit(),
    };
    if config.communication.check_order { launcher.check_order() } else { launcher }
}

/// Ranks that are threads of this process and of those that MPI started with it.
#[cfg(feature = "mpi")]
fn over_mpi(config: &Config, ranks: usize) -> Result<epl_comm::mpi::Launcher, (Rank, Error)> {
    if config.communication.check_order {
        let message = "communication.check_order compares calls of threads of one process; leave it out over MPI, and \
                       use it in a run of the same layout in one process";
        return Err((Rank(0), Error::invalid(message)));
    }
    let launcher = epl_comm::mpi::Launcher::new().ranks(ranks).on_failure(report);
    Ok(match time_limit(config) {
        Some(limit) => launcher.time_limit(limit),
        None => launcher.no_time_limit(),
    })
}

/// A rank that hangs keeps the run from returning its error.
fn report(_rank: Rank, error: &epl_comm::Error) {
    if let epl_comm::Error::Timeout { .. } = error {
        eprintln!("error: {error}\nthe run ends when that rank does");
    }
}

/// How long a rank waits; a limit too long for a clock is none.
fn time_limit(config: &Config) -> Option<Duration> {
    config.communication.time_limit.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}
