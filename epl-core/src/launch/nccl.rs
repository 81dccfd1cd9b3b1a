//! Ranks with a GPU each, and NCCL between them.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, Builder};

use epl_comm::{Meeting, ProcessGroup, Rank, Store, catch, nccl};

use super::joined::{Joined, of_rank, report, time_limit};
use crate::config::Config;
use crate::error::{Error, Result};

/// As much as a program's first thread has.
const STACK: usize = 8 << 20;

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
            let launcher = nccl::Launcher::new(gpus.len()).devices(gpus).on_failure(report);
            let launcher = match time_limit(config) {
                Some(limit) => launcher.time_limit(limit),
                None => launcher.no_time_limit(),
            };
            let launcher = if config.communication.check_order { launcher.check_order() } else { launcher };
            launcher.run(f).map_err(of_rank)
        }
    }
}

/// The ranks of one of several workers. The first failure is that of a rank that was not told of another's.
fn of_workers<T: Send>(
    joined: &Joined,
    config: &Config,
    gpus: &[usize],
    meeting: &Arc<Meeting>,
    f: impl Fn(ProcessGroup) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let (first, ranks) = (joined.cluster.local_ranks().start, joined.cluster.world_size());
    let store: Arc<dyn Store> = Arc::new(RunStore::new(meeting.clone()));
    let rank = |(thread, gpu): (usize, usize)| {
        let worker = nccl::Worker::new(store.clone(), first + thread, ranks).device(gpu);
        let worker = match time_limit(config) {
            Some(limit) => worker.time_limit(limit),
            None => worker.no_time_limit(),
        };
        catch(|| worker.run(&f)).unwrap_or_else(|error| Err(error.into()))
    };
    let rank = &rank;
    let ended: Vec<Result<T>> = thread::scope(|scope| {
        let start = |(thread, gpu): (usize, &usize)| {
            let gpu = *gpu;
            let builder = Builder::new().name(Rank(first + thread).to_string()).stack_size(STACK);
            builder.spawn_scoped(scope, move || rank((thread, gpu)))
        };
        let threads: Vec<_> = gpus.iter().enumerate().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<T>>| {
            thread.join().unwrap_or_else(|_| Err(Error::invalid("a rank's thread ended without a word")))
        };
        threads.into_iter().map(|thread| thread.map_err(no_thread).and_then(join)).collect()
    });
    let (mut values, mut failures) = (Vec::new(), Vec::new());
    for (thread, ended) in ended.into_iter().enumerate() {
        match ended {
            Ok(value) => values.push(value),
            Err(error) => failures.push((Rank(first + thread), error)),
        }
    }
    let is_own = |(_, error): &(Rank, Error)| !matches!(error, Error::Communication(epl_comm::Error::Peer { .. }));
    match failures.iter().position(is_own).or((!failures.is_empty()).then_some(0)) {
        Some(index) => Err(of_rank(failures.swap_remove(index))),
        None => Ok(values),
    }
}

fn no_thread(error: std::io::Error) -> Error {
    Error::invalid(format!(
        "cannot start the thread of a rank: {error}; run fewer ranks, or allow the process more threads"
    ))
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
    fn set(&self, key: &str, value: &[u8]) -> epl_comm::Result<()> {
        self.meeting.client().set(&format!("{}{key}", self.prefix), value)
    }

    fn get(&self, key: &str, wait: Duration) -> epl_comm::Result<Vec<u8>> {
        self.meeting.client().get(&format!("{}{key}", self.prefix), wait)
    }
}
