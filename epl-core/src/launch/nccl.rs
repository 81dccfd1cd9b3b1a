//! Ranks with a GPU each, and NCCL between them.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use epl_comm::{LaunchError, Meeting, ProcessGroup, Store, nccl};

use super::joined::{Joined, of_rank, watching};
use crate::config::Config;
use crate::error::{Error, Result};

/// Runs `f` on every rank of this process, each on a thread of its own.
pub(super) fn run<T: Send>(
    joined: &Joined,
    config: &Config,
    f: impl Fn(ProcessGroup) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let gpus = joined.devices.gpus().ok_or_else(|| {
        let message = "nccl carries data between GPUs, and this worker's ranks run on the host; see BURN_DEVICE";
        Error::invalid(message)
    })?;
    match &joined.meeting {
        Some(meeting) if joined.cluster.worker_num() > 1 => of_workers(joined, config, gpus, meeting, f),
        _ => {
            let launcher = watching(nccl::Launcher::new(gpus.len()).devices(gpus), config);
            let launcher = if config.communication.check_order { launcher.check_order() } else { launcher };
            launcher.run(f).map_err(of_rank)
        }
    }
}

/// The ranks of one of several workers.
fn of_workers<T: Send>(
    joined: &Joined,
    config: &Config,
    gpus: &[usize],
    meeting: &Arc<Meeting>,
    f: impl Fn(ProcessGroup) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if config.communication.check_order {
        let message = "communication.check_order compares calls of threads of one process; leave it out over NCCL between \
                       several, and use it in a run of the same layout in one process";
        return Err(Error::invalid(message));
    }
    let store = Arc::new(RunStore::new(meeting.clone()));
    let worker = nccl::Worker::new(store, joined.cluster.local_ranks(), joined.cluster.world_size());
    let worker = watching(worker.devices(gpus).ranks_on_host(joined.cluster.ranks_on_host()), config);
    let worker = if config.communication.check_calls { worker.compare_first(u64::MAX) } else { worker };
    worker.run(f).map_err(of_rank)
}

/// The values of one run: a program may run several, and a name has one value for ever.
struct RunStore {
    meeting: Arc<Meeting>,
    prefix: String,
}

impl RunStore {
    fn new(meeting: Arc<Meeting>) -> Self {
        // The same number in all workers, as they run the same program.
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("run {}/", RUNS.fetch_add(1, Ordering::Relaxed));
        Self { meeting, prefix }
    }
}

impl Store for RunStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), LaunchError> {
        self.meeting.client().set(&format!("{}{key}", self.prefix), value)
    }

    fn get(&self, key: &str, wait: Duration) -> Result<Vec<u8>, LaunchError> {
        self.meeting.client().get(&format!("{}{key}", self.prefix), wait)
    }

    fn forget(&self, key: &str) -> Result<(), LaunchError> {
        self.meeting.client().forget(&format!("{}{key}", self.prefix))
    }

    fn set_within(&self, key: &str, value: &[u8], limit: Duration) -> Result<(), LaunchError> {
        self.meeting.client().set_within(&format!("{}{key}", self.prefix), value, limit)
    }
}
