//! The command line, and what it comes to.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Starts the workers of a run, watches over them, and ends them together.
///
/// Options may be written with - or with _ between their words.
#[derive(Parser, Debug)]
#[command(name = "epl-launch", version)]
pub(crate) struct Arguments {
    /// Workers, over all machines: each is a process
    #[arg(long = "num_workers", alias = "num-workers", value_name = "N", default_value_t = 1)]
    pub num_workers: usize,
    /// Ranks of each worker: each is a thread that drives one GPU, or computes on the CPU where there is none
    #[arg(long = "gpu_per_worker", alias = "gpu-per-worker", value_name = "M", default_value_t = 1)]
    pub gpu_per_worker: usize,
    /// The machines, each of which runs this program with its own --machine_rank; the first one's port is where all meet,
    /// and the next port is where the programs do. All need the same EPL_LAUNCH_SECRET
    #[arg(long = "machine_list", alias = "machine-list", value_name = "HOST:PORT,...", value_delimiter = ',')]
    pub machine_list: Vec<String>,
    /// Which of them this one is, from 0
    #[arg(long = "machine_rank", alias = "machine-rank", value_name = "R", requires = "machine_list")]
    pub machine_rank: Option<usize>,
    /// A folder for a log of each worker, worker-0.log, and one of all, merged.log; of several machines each has one of its
    /// workers, merged-0.log
    #[arg(long = "log_dir", alias = "log-dir", value_name = "DIR")]
    pub log_dir: Option<PathBuf>,
    /// Shows what every rank does: its steps, tokens in a second, memory, and for whom it waits; on a terminal as a screen below the
    /// lines of the workers, else as lines. Of programs that train with EPL; on the first machine of the ranks of all machines that
    /// are given it
    #[arg(long)]
    pub watch: bool,
    /// How many times a run that failed is started again; the program is told so (EPL_LAUNCH_RESTART) and goes on from
    /// the latest checkpoint that it came to in this launch (EPL_LAUNCH_ID)
    #[arg(long = "max_restarts", alias = "max-restarts", value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub max_restarts: u32,
    /// How workers are started
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Start::Auto)]
    pub start: Start,
    /// The GPUs of this machine that may be used, by number; otherwise those of CUDA_VISIBLE_DEVICES, otherwise those on
    /// which nothing runs
    #[arg(long = "run_visible_devices", alias = "run-visible-devices", value_name = "LIST", value_delimiter = ',')]
    pub run_visible_devices: Vec<String>,
    /// How long all workers may take to be there
    #[arg(long = "join_timeout", alias = "join-timeout", value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub join_timeout: Duration,
    /// A worker that is stopped, or silent, for longer is given up: at least 1 second
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = patience)]
    pub patience: Duration,
    /// How long workers that are asked to end may take before they are killed
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    pub grace: Duration,
    /// The program and its arguments; a script without a first line that names its interpreter is run by bash
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

/// How workers are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Start {
    /// With GPUs processes; without processes over MPI if there is mpirun and the program is linked with MPI, else threads
    Auto,
    /// Processes that mpirun starts, with MPI between them
    Mpi,
    /// One process with all ranks
    Threads,
    /// Processes, with NCCL between them
    Processes,
}

/// Where this machine's workers are among all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub machine: usize,
    pub machines: usize,
    /// The first worker of this machine.
    pub first: usize,
    /// How many it has.
    pub workers: usize,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_string())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() && seconds <= 1e9 => Ok(time),
        _ => Err("allowed: more than 0 seconds, up to 1e9".into()),
    }
}

/// The shortest patience: who runs is looked at twice a second, and any process may be kept from running for a while.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

fn patience(text: &str) -> Result<Duration, String> {
    let patience = seconds(text)?;
    if patience < LEAST_PATIENCE {
        let (given, least) = (patience.as_secs_f64(), LEAST_PATIENCE.as_secs_f64());
        return Err(format!("{given} seconds; allowed: at least {least}"));
    }
    Ok(patience)
}

impl Arguments {
    /// Refuses what cannot be, and says which workers this machine has.
    pub fn share(&self) -> Result<Share, String> {
        let (workers, machines) = (self.num_workers, self.machine_list.len().max(1));
        if workers == 0 || self.gpu_per_worker == 0 || workers.checked_mul(self.gpu_per_worker).is_none() {
            return Err(format!(
                "--num_workers {workers} --gpu_per_worker {}: both are at least 1",
                self.gpu_per_worker
            ));
        }
        if workers % machines != 0 {
            return Err(format!(
                "--num_workers {workers} is not a multiple of the {machines} machines of --machine_list; each runs as many \
                 workers as the others"
            ));
        }
        let machine = match (self.machine_rank, machines) {
            (None, 1) => 0,
            (None, _) => {
                return Err(format!("--machine_list has {machines} machines; say which one this is by --machine_rank"));
            }
            (Some(rank), _) if rank >= machines => {
                return Err(format!("--machine_rank {rank}: --machine_list has {machines} machines, numbered from 0"));
            }
            (Some(rank), _) => rank,
        };
        let is_address = |machine: &&String| {
            machine.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
        };
        if let Some(wrong) = self.machine_list.iter().find(is_address) {
            return Err(format!("--machine_list: `{wrong}` is not host:port"));
        }
        // The others could not know which port the first one found, nor which one comes next.
        let port = |machine: &String| machine.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        if machines > 1 && self.machine_list.first().and_then(port).is_some_and(|port| port == 0 || port == u16::MAX) {
            return Err(format!(
                "--machine_list: the first machine's port, {}, and the next one are where all meet; choose one from 1 to {}",
                self.machine_list[0],
                u16::MAX - 1
            ));
        }
        if machines > 1 && matches!(self.start, Start::Mpi | Start::Threads) {
            return Err(format!(
                "--machine_list with {machines} machines goes with --start processes only; for MPI over several machines \
                 run the program under `mpirun` or `srun` itself, and threads are of one machine"
            ));
        }
        let each = workers / machines;
        Ok(Share { machine, machines, first: machine * each, workers: each })
    }
}
