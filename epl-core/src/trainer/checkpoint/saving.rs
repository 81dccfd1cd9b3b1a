//! A checkpoint that is written while training goes on.
//!
//! ```text
//! rank 0   copy │ write its part, wait for all ranks, index, rename, `latest`, remove old ones │
//! rank 1   copy │ write its part, say so │
//! steps         │ 201 │ 202 │ 203 ...  at each the ranks tell whether they are done
//! ```
//!
//! Where a rank fails, the others write on, and the first one waits no more. What went wrong is told once all have ended, so
//! that it is what went wrong on each.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::folder::CheckpointFolder;
use super::state::RunState;
use crate::checkpoint::durable::Disk;
use crate::checkpoint::{LOOK, Snapshot, finish, part_path};
use crate::error::{Error, Result};

/// How long a run that has failed waits for the parts of other ranks, from when they last grew.
const PATIENCE: Duration = Duration::from_secs(10);

/// The work of one rank.
pub(super) struct Job {
    pub folder: CheckpointFolder,
    /// None, if it is written already.
    pub snapshot: Result<Option<Snapshot<'static>>>,
    pub rank: usize,
    pub ranks: usize,
    pub saved: RunState,
    pub keep_last: usize,
}

/// A job that runs on a thread of its own, or is done.
#[derive(Debug)]
pub(super) struct Saving {
    pub step: u64,
    signals: Arc<Signals>,
    thread: Option<JoinHandle<Result<()>>>,
    result: Option<Ended>,
}

/// How a job ended: what went wrong.
pub(super) type Ended = Result<(), String>;

/// How far a job is.
#[derive(Clone, Copy, Debug)]
pub(super) enum JobState {
    Writing,
    /// Without a fault: it is written, or another rank has failed.
    Ended,
    Failed,
}

/// What the thread is told.
#[derive(Debug, Default)]
struct Signals {
    /// Another rank has failed: its part never comes.
    give_up: AtomicBool,
    /// The run ends: a part that is not there soon never comes.
    hurry: AtomicBool,
}

impl Saving {
    /// Starts a job.
    ///
    /// # Errors
    ///
    /// When the system gives no thread.
    pub fn start(job: Job) -> Result<Self> {
        let (step, signals) = (job.saved.step, Arc::new(Signals::default()));
        let told = signals.clone();
        let run = move || epl_comm::catch(|| job.run(&told)).unwrap_or_else(|panic| Err(panic.into()));
        let thread = thread::Builder::new().name("epl-save".into()).spawn(run);
        let thread = thread.map_err(|cause| Error::invalid(format!("no thread to save on: {cause}")))?;
        Ok(Self { step, signals, thread: Some(thread), result: None })
    }

    /// How this rank's work has ended, if it has.
    pub fn look(&mut self) -> Option<&Ended> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            self.join();
        }
        self.result.as_ref()
    }

    /// How far this rank's work is.
    pub fn state(&mut self) -> JobState {
        match self.look() {
            None => JobState::Writing,
            Some(Ok(())) => JobState::Ended,
            Some(Err(_)) => JobState::Failed,
        }
    }

    /// Waits for it.
    pub fn join(&mut self) -> &Ended {
        if let Some(thread) = self.thread.take() {
            let ended = thread.join().map(|ended| ended.map_err(|error| error.to_string()));
            self.result =
                Some(ended.unwrap_or_else(|_| Err("the thread that saves has ended without a result".into())));
        }
        self.result.get_or_insert(Ok(()))
    }

    /// Tells it that another rank has failed.
    pub fn give_up(&self) {
        self.signals.give_up.store(true, Ordering::Release);
    }
}

impl Drop for Saving {
    /// The run ends, perhaps with an error: what can still be finished is.
    fn drop(&mut self) {
        self.signals.hurry.store(true, Ordering::Release);
        self.join();
    }
}

impl Job {
    fn run(self, signals: &Signals) -> Result<()> {
        let (disk, partial) = (self.folder.disk(), self.folder.partial(self.saved.step)?);
        if let Some(snapshot) = self.snapshot? {
            snapshot.write(disk, &partial, self.rank)?;
        }
        if self.rank > 0 {
            return say_done(disk, &done_path(&partial, self.rank));
        }
        let done: Vec<PathBuf> = (1..self.ranks).map(|rank| done_path(&partial, rank)).collect();
        if !wait_for(&done, &partial, signals)? {
            return Ok(());
        }
        done.iter().try_for_each(|path| disk.remove_file(path).map_err(|error| Error::file(path, error)))?;
        let state = [("run".to_string(), self.saved.to_value()?)].into();
        finish(disk, &partial, self.ranks, state)?;
        self.folder.commit(self.saved.step)?;
        // It is whole. What cannot be removed now is told, and each later one tries to remove it again.
        self.folder.prune(self.saved.step, self.keep_last);
        Ok(())
    }
}

/// The file that says that a rank has written its part. The part itself does not: it has its name before the rank has made
/// that durable, and by then the first rank could have renamed the folder.
fn done_path(partial: &Path, rank: usize) -> PathBuf {
    part_path(partial, rank).with_extension("done")
}

/// The last thing that a rank does. It need not outlive anything.
fn say_done(disk: &dyn Disk, path: &Path) -> Result<()> {
    disk.create(path).map(drop).map_err(|error| Error::file(path, error))
}

/// How many bytes a folder has.
fn size_of(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// Waits until all files are there; not, once another rank has failed, which says itself what went wrong.
fn wait_for(files: &[PathBuf], partial: &Path, signals: &Signals) -> Result<bool> {
    let mut hurried: Option<Instant> = None;
    let mut size = 0;
    loop {
        let missing = files.iter().filter(|file| !file.exists()).count();
        if missing == 0 {
            return Ok(true);
        }
        if signals.give_up.load(Ordering::Acquire) {
            return Ok(false);
        }
        if signals.hurry.load(Ordering::Acquire) {
            let now = size_of(partial);
            if now != size {
                (size, hurried) = (now, None);
            }
            hurried.get_or_insert_with(Instant::now);
        }
        if hurried.is_some_and(|since| since.elapsed() > PATIENCE) {
            return Err(Error::invalid(format!("the parts of {missing} ranks are missing")));
        }
        thread::sleep(LOOK);
    }
}
