//! A worker, and its place among the others.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::hosts;
use crate::error::{Error, Result};
use crate::rendezvous::{Client, Secret, Server, Settings};
use crate::system::name_of_machine;

/// The variable of the secret, whoever starts the workers.
pub(super) const SECRET: &str = "EPL_LAUNCH_SECRET";

/// Who says which worker a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The program itself.
    Explicit,
    /// The variables of `epl-launch`.
    EplLaunch,
    /// Those of torchrun.
    Torchrun,
    /// Those of Open MPI.
    OpenMpi,
    /// Those of PMI.
    Pmi,
    /// Those of a step of Slurm.
    Slurm,
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Explicit => "as the program says",
            Self::EplLaunch => "as EPL_LAUNCH_WORKER and EPL_LAUNCH_WORKERS say",
            Self::Torchrun => "as RANK and WORLD_SIZE say",
            Self::OpenMpi => "as OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE say",
            Self::Pmi => "as PMI_RANK and PMI_SIZE say",
            Self::Slurm => "as SLURM_PROCID and SLURM_NTASKS say",
        })
    }
}

/// What carries tensors from one worker to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Carrier {
    /// Nothing: there is one worker, and its ranks are threads.
    Threads,
    /// MPI, through host memory.
    Mpi,
    /// NCCL, between GPUs.
    Nccl,
}

/// Where workers find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeetingPoint {
    /// `host:port`.
    pub address: String,
    /// What all workers know.
    pub secret: Secret,
    /// Whether the first worker listens there. Otherwise what started the workers does.
    pub is_hosted_by_first: bool,
}

/// One worker: a process that drives one rank or more.
///
/// ```
/// use epl_launch::{Source, Worker};
///
/// // As torchrun says it; `Worker::from_environment` reads the environment of the process.
/// let environment = |name: &str| match name {
///     "RANK" => Some("1".to_string()),
///     "WORLD_SIZE" => Some("3".to_string()),
///     _ => None,
/// };
/// let worker = Worker::from_variables(&environment, Some(2))?.expect("it is said");
/// assert_eq!((worker.source(), worker.world_size(), worker.first_rank()), (Source::Torchrun, 6, 2));
/// # Ok::<_, epl_launch::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    pub(super) workers: usize,
    pub(super) worker: usize,
    pub(super) local_ranks: usize,
    pub(super) local_worker: Option<usize>,
    /// How many devices the environment lists as those that this process may see.
    pub(super) listed_devices: Option<usize>,
    pub(super) carrier: Carrier,
    pub(super) meeting_point: Option<MeetingPoint>,
    pub(super) restart: u32,
    pub(super) source: Source,
}

/// A worker's place among the others, until it is dropped. The first worker may hold the server, too: it then waits, when
/// it drops this, until the others have left.
#[derive(Debug)]
pub struct Meeting {
    /// Before the server, as it must have left when that ends.
    client: Client,
    _server: Option<Hosted>,
}

/// A server that others rely on.
#[derive(Debug)]
struct Hosted(Server);

impl Drop for Hosted {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Worker {
    /// The only worker, with so many ranks.
    ///
    /// # Errors
    ///
    /// No ranks.
    pub fn alone(local_ranks: usize) -> Result<Self> {
        Self::new(1, 0, local_ranks, Carrier::Threads)
    }

    /// Worker `worker` of `workers`, each with so many ranks.
    ///
    /// # Errors
    ///
    /// Numbers that do not fit, or several workers between which nothing carries data.
    pub fn new(workers: usize, worker: usize, local_ranks: usize, carrier: Carrier) -> Result<Self> {
        let new = Self {
            workers,
            worker,
            local_ranks,
            local_worker: None,
            listed_devices: None,
            carrier,
            meeting_point: None,
            restart: 0,
            source: Source::Explicit,
        };
        new.checked()
    }

    pub(super) fn checked(self) -> Result<Self> {
        let Self { workers, worker, local_ranks, carrier, .. } = &self;
        let joining = |message: String| Err(Error::Joining { message });
        if *worker >= *workers {
            return joining(format!(
                "there is no worker {worker} of {workers}: they are numbered from 0 ({})",
                self.source
            ));
        }
        if *local_ranks == 0 || workers.checked_mul(*local_ranks).is_none() {
            return joining(format!("{workers} workers with {local_ranks} ranks each; both numbers are at least 1"));
        }
        if *workers > 1 && *carrier == Carrier::Threads {
            return joining(format!(
                "{workers} workers, and nothing that carries data between them: threads are of one process ({}); use \
                 `mpi` or `nccl`",
                self.source
            ));
        }
        Ok(self)
    }

    /// This worker, between which and the others something else carries the data.
    ///
    /// # Errors
    ///
    /// Threads, with several workers.
    pub fn with_carrier(self, carrier: Carrier) -> Result<Self> {
        Self { carrier, ..self }.checked()
    }

    /// This worker, which meets the others elsewhere.
    pub fn with_meeting_point(self, meeting_point: MeetingPoint) -> Self {
        Self { meeting_point: Some(meeting_point), ..self }
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The number of this one.
    pub fn worker(&self) -> usize {
        self.worker
    }

    /// How many ranks each worker drives.
    pub fn local_ranks(&self) -> usize {
        self.local_ranks
    }

    /// The first of this worker's ranks, among those of all workers.
    pub fn first_rank(&self) -> usize {
        self.worker * self.local_ranks
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.workers * self.local_ranks
    }

    /// The number of this worker among those of its host, where that is known.
    pub fn local_worker(&self) -> Option<usize> {
        self.local_worker
    }

    /// The device of this worker's first rank, among those that its process sees; the others follow. `epl-launch` shows
    /// each worker its own devices only; so does whoever lists as many in `CUDA_VISIBLE_DEVICES` as a worker has ranks,
    /// such as Slurm with `--gpus-per-task`.
    pub fn first_device(&self) -> usize {
        match self.source {
            Source::EplLaunch => 0,
            _ if self.listed_devices == Some(self.local_ranks) => 0,
            _ => self.local_worker.unwrap_or(0) * self.local_ranks,
        }
    }

    /// What carries data between workers.
    pub fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Where the workers meet, where that is known.
    pub fn meeting_point(&self) -> Option<&MeetingPoint> {
        self.meeting_point.as_ref()
    }

    /// How many times the run has been restarted.
    pub fn restart(&self) -> u32 {
        self.restart
    }

    /// Who says all this.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Meets the others, and comes back when all have come. The first worker starts the server where no one else does.
    ///
    /// # Errors
    ///
    /// When it is not known where, and what [`Client::join`] and [`Server::start`] say.
    pub fn meet(&self, limit: Duration) -> Result<Meeting> {
        let Some(point) = &self.meeting_point else {
            return Err(Error::Joining {
                message: format!(
                    "worker {} of {} does not know where to meet the others ({}); set MASTER_ADDR, MASTER_PORT and \
                     {}, or start the workers by `epl-launch`",
                    self.worker, self.workers, self.source, SECRET
                ),
            });
        };
        let server = (point.is_hosted_by_first && self.worker == 0).then(|| {
            let mut settings = Settings::new(self.workers, point.secret.clone());
            settings.restart = self.restart;
            settings.join_within = Some(limit);
            settings.address = resolve(&point.address)?;
            settings.comes_again = false;
            Server::start(settings)
        });
        let server = server.transpose()?;
        let Self { workers, worker, restart, .. } = *self;
        let client = Client::join_again(&point.address, worker, workers, restart, &point.secret, limit)?;
        Ok(Meeting { client, _server: server.map(Hosted) })
    }
}

/// One call of `epl-launch`, and all that comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// What no other launch has: the same for all workers, and after every restart.
    pub id: String,
    /// How many times it has restarted this run.
    pub restarts: u32,
}

fn resolve(address: &str) -> Result<std::net::SocketAddr> {
    use std::net::ToSocketAddrs;
    let joining = |why: String| Error::Joining { message: format!("`{address}` is no address to listen at: {why}") };
    let mut found = address.to_socket_addrs().map_err(|error| joining(error.to_string()))?;
    found.next().ok_or_else(|| joining("the name has none".into()))
}

impl Meeting {
    /// This worker's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether this worker holds the server.
    pub fn hosts_server(&self) -> bool {
        self._server.is_some()
    }

    /// Leaves, as when this is dropped: for a process that is about to end without that. Who holds the server waits until the
    /// others have left, or one has failed.
    pub fn leave(&self) {
        self.client.leave();
        if let Some(Hosted(server)) = &self._server {
            server.close();
        }
    }

    /// The first worker on the machine of each. All workers ask.
    ///
    /// # Errors
    ///
    /// When not all workers have asked within `limit`, or the way to them is lost.
    pub fn hosts(&self, limit: Duration) -> Result<Vec<usize>> {
        let who = (self.client.worker(), self.client.workers());
        hosts::of_workers(&self.client, who, name_of_machine(), limit)
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Threads => "threads",
            Self::Mpi => "mpi",
            Self::Nccl => "nccl",
        })
    }
}

impl FromStr for Carrier {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "threads" => Ok(Self::Threads),
            "mpi" => Ok(Self::Mpi),
            "nccl" => Ok(Self::Nccl),
            _ => Err(Error::Joining { message: format!("`{text}`; allowed: threads, mpi, nccl") }),
        }
    }
}
