//! Which workers there are, and over what their ranks communicate.
//!
//! ```text
//! environment          communication.transport       ranks
//! nothing      ─────▶  threads                       threads of this process; nccl, where each has a GPU
//! epl-launch,  ─────▶  mpi (feature `mpi`),          threads of this process and of others, as one world
//! mpirun,              nccl (feature `cuda`)
//! torchrun, srun
//! ```

use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use epl_comm::{Carrier, Launcher, Meeting, Rank, Source, Worker, local};

use super::device::{Devices, Taking};
use crate::config::{Config, TransportChoice};
use crate::error::{Error, Result};
use crate::topology::cluster::{Cluster, Mesh};

/// How long a worker waits for the others to come, whatever a collective's limit is: they start together.
const MEET_WITHIN: Duration = Duration::from_secs(5 * 60);

/// The world that this process is in.
pub(super) struct Joined {
    pub(super) cluster: Cluster,
    pub(super) mesh: Mesh,
    /// Of this worker's ranks.
    pub(super) devices: Devices,
    pub(super) carrier: Carrier,
    /// This worker's place among the others, for as long as it runs.
    pub(super) meeting: Option<Arc<Meeting>>,
}

impl Joined {
    /// Reads from the configuration and the environment which ranks there are, and meets the other workers.
    pub(super) fn new(config: &Config) -> Result<Self> {
        let Some(worker) = worker(config)? else {
            let mesh = Mesh::from_config(config)?;
            let cluster = Cluster::local(mesh.world_size())?;
            let taking = Taking { ranks: cluster.world_size(), first: 0, share: true };
            let devices = Devices::of_worker(config, taking)?;
            let carrier = between_threads(config, &devices)?;
            return Ok(Self { cluster, mesh, devices, carrier, meeting: None });
        };
        let cluster = Cluster::new(vec![worker.local_ranks(); worker.workers()], worker.worker())?;
        Mesh::on_cluster(&cluster, config)?;
        let share = worker.carrier() != Carrier::Nccl;
        let is_lone = worker.carrier() == Carrier::Threads;
        let taking = Taking { ranks: worker.local_ranks(), first: worker.first_device(), share };
        let devices = Devices::of_worker(config, taking)?;
        // Over NCCL workers cannot do without; where there is no meeting point, it says what to set.
        let meets = worker.meeting_point().is_some() || (worker.workers() > 1 && worker.carrier() == Carrier::Nccl);
        let meeting = meets.then(|| worker.meet(MEET_WITHIN)).transpose()?;
        if let Some(meeting) = &meeting {
            // A rendezvous that is stopped for a while is no reason to end ranks that do not need it meanwhile.
            meeting.client().set_patience(patience(config, meeting.client().patience()));
        }
        let cluster = match hosts(&worker, meeting.as_ref())? {
            Some(hosts) => cluster.with_hosts(hosts)?,
            None => cluster,
        };
        // What does not fit has been refused above; now neighbours are on one host.
        let mesh = Mesh::on_cluster(&cluster, config)?;
        let carrier = if is_lone { between_threads(config, &devices)? } else { worker.carrier() };
        let meeting = meeting.map(Arc::new);
        let mut meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
        meetings.retain(|meeting| meeting.strong_count() > 0);
        meetings.extend(meeting.as_ref().map(Arc::downgrade));
        drop(meetings);
        Ok(Self { cluster, mesh, devices, carrier, meeting })
    }

    /// Tells the other workers of a failure that ends this one, if it is this one's own. Who holds the rendezvous does so
    /// in any case: it would wait for workers that hang.
    pub(super) fn tell(&self, error: &Error) {
        let Some(meeting) = &self.meeting else { return };
        let is_own = match error {
            Error::Rank { rank, .. } => self.cluster.local_ranks().contains(&rank.0),
            _ => true,
        };
        if is_own || meeting.hosts_server() {
            meeting.client().fail(&error.to_string());
        }
    }
}

/// This process's places among other workers.
static MEETINGS: Mutex<Vec<Weak<Meeting>>> = Mutex::new(Vec::new());

/// Leaves the other workers in order, before the process ends in the midst of a world: who is still in its last call would
/// hear otherwise that this worker is lost.
pub(crate) fn leave_workers() {
    let meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    meetings.iter().filter_map(Weak::upgrade).for_each(|meeting| meeting.leave());
}

/// How long the rendezvous may be silent: as long as a collective may take, and never less than without being asked.
fn patience(config: &Config, least: Duration) -> Duration {
    time_limit(config).unwrap_or(Duration::MAX).max(least)
}

/// The first worker on the host of each, where there is a way to know.
fn hosts(worker: &Worker, meeting: Option<&Meeting>) -> Result<Option<Vec<usize>>> {
    match (worker.carrier(), meeting) {
        #[cfg(feature = "mpi")]
        (Carrier::Mpi, _) => Ok(Some(epl_comm::mpi::hosts()?)),
        (_, Some(meeting)) if worker.workers() > 1 => Ok(Some(meeting.hosts(MEET_WITHIN)?)),
        _ => Ok(None),
    }
}

/// Who this process is among others; none if it is alone.
fn worker(config: &Config) -> Result<Option<Worker>> {
    let transport = config.communication.transport;
    let asked = match transport {
        TransportChoice::Auto => None,
        TransportChoice::Threads => Some(Carrier::Threads),
        TransportChoice::Mpi => Some(Carrier::Mpi),
        TransportChoice::Nccl => Some(Carrier::Nccl),
    };
    let worker = match Worker::from_environment(config.cluster.ranks)? {
        // A job of one process is no different from a program started by hand, unless it is told how many ranks it has.
        Some(worker) if worker.workers() > 1 || worker.source() == Source::EplLaunch => worker,
        _ if asked == Some(Carrier::Mpi) => Worker::alone(config.cluster.ranks.unwrap_or(1))?,
        _ => return Ok(None),
    };
    let worker = match asked {
        Some(carrier) => worker.with_carrier(carrier)?,
        None => worker,
    };
    can_carry(worker.carrier(), || {
        format!("this process is worker {} of {} ({})", worker.worker(), worker.workers(), worker.source())
    })?;
    Ok(Some(worker))
}

/// What carries data between the threads of a lone process: NCCL, where each drives a GPU of its own.
fn between_threads(config: &Config, devices: &Devices) -> Result<Carrier> {
    let is_asked = config.communication.transport == TransportChoice::Nccl;
    if is_asked {
        can_carry(Carrier::Nccl, || "communication.transport = nccl".to_string())?;
    }
    if config.communication.transport == TransportChoice::Threads {
        return Ok(Carrier::Threads);
    }
    match devices.gpus() {
        None if is_asked => Err(Error::invalid(
            "communication.transport = nccl, and this program's ranks run on the host; leave it out, or choose a GPU by \
             BURN_DEVICE=cuda",
        )),
        Some(gpus) if is_asked || (gpus.len() > 1 && devices.are_gpus_apart()) => Ok(Carrier::Nccl),
        _ => Ok(Carrier::Threads),
    }
}

/// Whether this program has what carries data that way, which is asked for as `told` says.
fn can_carry(carrier: Carrier, told: impl FnOnce() -> String) -> Result<()> {
    let feature = match carrier {
        Carrier::Mpi if !cfg!(feature = "mpi") => "mpi",
        Carrier::Nccl if !cfg!(feature = "cuda") => "cuda",
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "{}, and its data goes over {carrier}, but the program was built without that; build it with `--features {feature}`, \
         or run all ranks as threads of one process",
        told()
    )))
}

/// A launcher, of whatever kind, that watches its ranks as the configuration says.
pub(super) fn watching<K>(launcher: Launcher<K>, config: &Config) -> Launcher<K> {
    let launcher = launcher.on_failure(report);
    match time_limit(config) {
        Some(limit) => launcher.time_limit(limit),
        None => launcher.no_time_limit(),
    }
}

/// Ranks that are threads of this process.
pub(super) fn threads(config: &Config, ranks: usize) -> local::Launcher {
    let launcher = watching(local::Launcher::new(ranks), config);
    if config.communication.check_order { launcher.check_order() } else { launcher }
}

/// Ranks that are threads of this process and of those that MPI started with it.
#[cfg(feature = "mpi")]
pub(super) fn over_mpi(config: &Config, ranks: usize) -> Result<epl_comm::mpi::Launcher> {
    if config.communication.check_order {
        let message = "communication.check_order compares calls of threads of one process; leave it out over MPI, and \
                       use it in a run of the same layout in one process";
        return Err(Error::invalid(message));
    }
    Ok(watching(epl_comm::mpi::Launcher::new().ranks(ranks), config))
}

/// A failure with its rank.
pub(super) fn of_rank((rank, cause): (Rank, Error)) -> Error {
    Error::Rank { rank, cause: Box::new(cause) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_limit_of_collectives_is_none_of_the_rendezvous() {
        let least = Duration::from_secs(15);
        let of = |seconds: f64| {
            let config = Config::default().with("communication.time_limit", seconds).unwrap();
            patience(&config, least)
        };
        assert_eq!([3.0, 0.0001, 15.0].map(of), [least; 3]);
        assert_eq!(of(1800.0), Duration::from_secs(1800));
    }
}
