//! The lock on a run's folder: two runs in one would rename each other's checkpoints.
//!
//! The first rank of a run holds a lock of the system on the file `lock`, which names the process. The system releases it
//! when the process ends, however it ends; the file stays. Who only reads a run's checkpoints does not ask for it. It
//! reaches as far as the file system carries locks (`flock`): on one machine always, between machines on NFS unless it is
//! mounted with `nolock` or `local_lock`, on Lustre where it is mounted with `flock`. Windows lets nobody read a locked file: who
//! holds it has no name there.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use epl_comm::ProcessGroup;
use indicatif::HumanDuration;

use crate::checkpoint::durable::{FileSystem, create_folder};
use crate::error::{Error, Result};

/// The file that is locked.
const FILE: &str = "lock";
/// A process that is killed may hold it a moment longer, and one that [asks](check_unused) holds it for a moment.
const MOMENT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// A run's hold on its folder, until it is dropped.
#[derive(Debug)]
pub(super) struct FolderLock {
    /// The locked file, on the first rank.
    _file: Option<File>,
    /// That the file system has no locks, or no room for the holder's name: no reason to end a run.
    pub(super) warning: Result<()>,
}

impl FolderLock {
    /// Locks the folder; one that is not there is made, but for a run that resumes, and finds nothing there. Collective; the
    /// first rank does it.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] on all ranks when another run holds it, or an earlier one of this process; when the folder cannot be
    /// made.
    pub(super) fn take(out: &Path, resumes: bool, world: &ProcessGroup) -> Result<Self> {
        let (lock, holder) = match world.rank() {
            0 if !resumes || out.is_dir() => Self::hold(out)?,
            _ => (Self { _file: None, warning: Ok(()) }, String::new()),
        };
        let holder = world.all_gather_texts(&holder)?.swap_remove(0);
        if holder.is_empty() { Ok(lock) } else { Err(Error::in_use(out, holder)) }
    }

    /// The lock; or who has it, in words.
    fn hold(out: &Path) -> Result<(Self, String)> {
        create_folder(&FileSystem, out)?;
        let path = out.join(FILE);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = file.map_err(|error| Error::file(&path, error))?;
        let (warning, holder) = match patiently(|| file.try_lock()) {
            Ok(()) => (name_holder(&mut file).map_err(|error| Error::file(&path, error)), String::new()),
            Err(TryLockError::WouldBlock) => (Ok(()), holder(&mut file)),
            Err(TryLockError::Error(error)) => {
                let warning = format!("it cannot be locked ({error}); see that no other run writes into the folder");
                (Err(Error::file(&path, warning)), String::new())
            }
        };
        Ok((Self { _file: Some(file), warning }, holder))
    }
}

/// Refuses a folder in which a run is under way: for a program that writes there before its own run begins. Nothing is held
/// when it returns, and nothing is made.
///
/// # Errors
///
/// [`Error::InUse`].
pub fn check_unused(out: &Path) -> Result<()> {
    // Without a file, or one that may be read, nothing is known.
    let Ok(mut file) = File::open(out.join(FILE)) else { return Ok(()) };
    match patiently(|| file.try_lock_shared()) {
        Err(TryLockError::WouldBlock) => Err(Error::in_use(out, holder(&mut file))),
        _ => Ok(()),
    }
}

/// Tries for a moment.
fn patiently(lock: impl Fn() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    let begin = Instant::now();
    loop {
        match lock() {
            Err(TryLockError::WouldBlock) if begin.elapsed() < MOMENT => thread::sleep(PAUSE),
            done => return done,
        }
    }
}

/// Writes who this process is.
fn name_holder(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all(format!("{}\n", name_of_process()).as_bytes())
}

fn name_of_process() -> String {
    format!("process {} on {}", std::process::id(), epl_comm::host_name().unwrap_or_else(|| "a host".into()))
}

/// Who holds the lock, as far as the file tells.
fn holder(file: &mut File) -> String {
    let mut name = String::new();
    let _ = file.rewind().and_then(|()| file.read_to_string(&mut name));
    let name = Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("another run");
    let own = "; that is this very process: drop what its earlier `fit` has returned (`Trained`)";
    let own = if name == name_of_process() { own } else { "" };
    // It was written when the run began.
    let since = file.metadata().and_then(|file| file.modified()).ok().and_then(|begin| begin.elapsed().ok());
    let since = since.map(|since| format!(", which began {} ago", HumanDuration(since)));
    format!("{name}{}{own}", since.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_folder_is_named_and_who_only_asks_holds_nothing() {
        let out = tempfile::tempdir().unwrap();
        check_unused(out.path()).unwrap();
        assert!(!out.path().join(FILE).exists());
        let (lock, holder) = FolderLock::hold(out.path()).unwrap();
        assert!(lock.warning.is_ok() && holder.is_empty());
        let error = check_unused(out.path()).unwrap_err();
        let named = format!("is in use by process {} on ", std::process::id());
        assert!(error.to_string().contains(&named) && error.to_string().contains("which began "), "{error}");
        assert_eq!(error.exit_code(), 2);
        let (_, holder) = FolderLock::hold(out.path()).unwrap();
        assert!(holder.contains("this very process: drop ") && holder.contains("`Trained`"), "{holder}");
        drop(lock);
        check_unused(out.path()).unwrap();
        let (_lock, holder) = FolderLock::hold(out.path()).unwrap();
        assert!(holder.is_empty());
    }
}
