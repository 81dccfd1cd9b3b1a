//! Checkpoints that are written while training goes on, and those that cannot be.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use epl_core::checkpoint::durable::{Disk, DiskFile, FileSystem};
use epl_core::testing::run;
use epl_core::trainer::{CheckpointId, Checkpoints, FailedSave, Hook, Run, StepRecord};
use epl_core::{Model, Result, launch, testing};
use tempfile::tempdir;

use crate::trainer::net::{config, data, fit, lines, message, trainer, valid, values};

/// A file system on which files of some folders are only created once they may be, or not at all.
#[derive(Debug)]
struct Gate {
    /// The folder, at any depth.
    folder: &'static str,
    /// How the names of files begin that wait until it is opened; of none, all are created or fail at once.
    held: Option<&'static str>,
    /// Why none of its files can be created.
    fails: Option<io::ErrorKind>,
    /// A folder that cannot be removed, such as one in which a file is open on NFS.
    stuck: Option<&'static str>,
    opened: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn new(folder: &'static str, held: Option<&'static str>, fails: Option<io::ErrorKind>) -> Arc<Self> {
        let (opened, changed) = (Mutex::new(false), Condvar::new());
        Arc::new(Self { folder, held, fails, stuck: None, opened, changed })
    }

    fn stuck(folder: &'static str) -> Arc<Self> {
        let gate = Arc::into_inner(Self::new("", None, None)).unwrap();
        Arc::new(Self { stuck: Some(folder), ..gate })
    }

    fn open(&self) {
        *self.opened.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn pass(&self, path: &Path) -> io::Result<()> {
        if !path.components().any(|part| part.as_os_str() == self.folder) {
            return Ok(());
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        if self.held.is_some_and(|held| name.starts_with(held)) {
            let opened = self.opened.lock().unwrap();
            // Nobody opens it where training waits for the checkpoint.
            let limit = Duration::from_secs(60);
            let waited = self.changed.wait_timeout_while(opened, limit, |opened| !*opened).unwrap().1;
            if waited.timed_out() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        self.fails.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

impl Disk for Gate {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        FileSystem.create_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.pass(path)?;
        FileSystem.create(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        FileSystem.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        FileSystem.remove_file(path)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        if self.stuck.is_some_and(|stuck| path.ends_with(stuck)) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        FileSystem.remove_folder(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        FileSystem.sync_folder(path)
    }
}

/// Opens a gate after a step, and remembers what could not be saved.
struct Watch<'a> {
    gate: &'a Gate,
    opens_after: u64,
    failed: &'a Mutex<Vec<FailedSave>>,
    warnings: &'a Mutex<Vec<String>>,
}

impl<M: Model> Hook<M> for Watch<'_> {
    fn after_warning(&mut self, _run: &mut Run<M>, warning: &str) -> Result<()> {
        self.warnings.lock().unwrap().push(warning.to_string());
        Ok(())
    }

    fn after_step(&mut self, run: &mut Run<M>, _record: &StepRecord) -> Result<()> {
        if run.step() == self.opens_after {
            self.gate.open();
        }
        Ok(())
    }

    fn after_failed_save(&mut self, run: &mut Run<M>, failed: &FailedSave) -> Result<()> {
        if run.is_first_rank() {
            self.failed.lock().unwrap().push(failed.clone());
        }
        Ok(())
    }
}

fn run_on(disk: &Arc<Gate>, out: &Path, steps: u64, opens_after: u64) -> (Result<()>, Vec<FailedSave>) {
    let (ran, failed, _) = run_watched(disk, out, steps, opens_after);
    (ran, failed)
}

/// The same, with its warnings.
fn run_watched(
    disk: &Arc<Gate>,
    out: &Path,
    steps: u64,
    opens_after: u64,
) -> (Result<()>, Vec<FailedSave>, Vec<String>) {
    let (failed, warnings) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let ran = launch(&testing::config(2, 1, 1), |epl| {
        let watch = Watch { gate: disk, opens_after, failed: &failed, warnings: &warnings };
        // Evaluated at the end only: an evaluation is noted in its checkpoint, and waits for it.
        let config = config(out, steps).with_eval_every(None);
        let trainer = trainer(&epl, config)?.with_valid(valid());
        trainer.with_disk(disk.clone()).with_hook(watch).fit(&data()).map(|_| ())
    });
    (ran.map(|_| ()), failed.into_inner().unwrap(), warnings.into_inner().unwrap())
}

/// The checkpoint of step 6 is only written when step 9 is done: training goes on meanwhile, and what is written is what
/// was there after step 6.
#[test]
fn training_goes_on_while_a_checkpoint_is_written() {
    let (folder, whole) = (tempdir().unwrap(), tempdir().unwrap());
    let gate = Gate::new(".step-6.partial", Some(""), None);
    let (ran, failed) = run_on(&gate, folder.path(), 11, 9);
    ran.unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    let after_six = fit((1, 1, 1), config(whole.path(), 6));
    let loaded = run((2, 1, 1), |epl| {
        let checkpoints = Checkpoints::new(folder.path(), 2);
        let mut trained = trainer(&epl, config(&folder.path().join("other"), 1))?.with_valid(valid()).fit(&data())?;
        trained.engine.load(checkpoints.find(CheckpointId::Step(6))?)?;
        assert_eq!(trained.engine.steps(), 6);
        trained.engine.parameters()
    });
    let error = testing::largest_error(&loaded[0], &after_six);
    assert!(error.1 < 1e-5, "{error:?}");
}

#[test]
fn a_full_disk_is_told_and_training_goes_on() {
    let folder = tempdir().unwrap();
    let gate = Gate::new(".step-12.partial", None, Some(io::ErrorKind::StorageFull));
    let (ran, failed) = run_on(&gate, folder.path(), 20, 99);
    ran.unwrap();
    assert_eq!(failed.iter().map(|failed| failed.step).collect::<Vec<_>>(), [12]);
    let reason = &failed[0].reason;
    assert!(reason.contains("rank 0") && reason.contains("rank 1") && reason.contains(".step-12"), "{reason}");
    assert_eq!(Checkpoints::new(folder.path(), 2).steps().unwrap(), [18, 20]);
    assert_eq!(values(&lines(folder.path()), "step").len(), 20);
}

/// One rank fails at once, the other when step 15 is done: neither is waited for meanwhile, and both are told.
#[test]
fn what_went_wrong_on_any_rank_is_told_once_all_have_ended() {
    let folder = tempdir().unwrap();
    for (held, at_once) in [("rank-00001", "rank 0"), ("rank-00000", "rank 1")] {
        let out = folder.path().join(held);
        let gate = Gate::new(".step-12.partial", Some(held), Some(io::ErrorKind::StorageFull));
        let (ran, failed) = run_on(&gate, &out, 20, 15);
        ran.unwrap();
        let [FailedSave { step: 12, reason }] = &failed[..] else { panic!("{at_once} fails at once: {failed:?}") };
        assert!(reason.contains("rank 0: ") && reason.contains("rank 1: "), "{at_once} fails at once: {reason}");
        let full = io::Error::from(io::ErrorKind::StorageFull).to_string();
        assert_eq!(reason.matches(&full).count(), 2, "{at_once} fails at once: {reason}");
    }
}

/// The first rank, which waits for the part of the other one, has not failed by itself.
#[test]
fn a_rank_that_waits_for_one_that_fails_is_not_named() {
    let folder = tempdir().unwrap();
    let gate = Gate::new("rank-00001.safetensors", None, Some(io::ErrorKind::StorageFull));
    let (ran, failed) = run_on(&gate, folder.path(), 9, 99);
    let text = message(ran);
    let (_, last) = text.split_once("the last step, 9, could not be written: ").unwrap_or_else(|| panic!("{text}"));
    assert!(last.starts_with("rank 1: ") && !last.contains("rank 0: "), "{text}");
    assert_eq!(failed.iter().map(|failed| failed.step).collect::<Vec<_>>(), [6, 9]);
    let of_second = |reason: &str| reason.starts_with("rank 1: ") && !reason.contains("rank 0: ");
    assert!(failed.iter().all(|failed| of_second(&failed.reason)), "{failed:?}");
}

#[test]
fn what_is_lost_at_the_end_is_an_error_and_the_run_resumes_from_the_one_before() {
    let folder = tempdir().unwrap();
    let gate = Gate::new(".step-9.partial", None, Some(io::ErrorKind::StorageFull));
    let (ran, _) = run_on(&gate, folder.path(), 9, 99);
    let text = message(ran);
    assert!(text.contains("the last step, 9, could not be written"), "{text}");
    assert!(!folder.path().join("checkpoints/.step-9.partial").exists());
    let resumed = fit((2, 1, 1), config(folder.path(), 9).with_resume(true));
    let whole: PathBuf = folder.path().join("whole");
    assert_eq!(testing::largest_error(&resumed, &fit((2, 1, 1), config(&whole, 9))).1, 0.0);
}

#[test]
fn an_old_checkpoint_that_cannot_be_removed_is_told_and_later_ones_are_saved() {
    let folder = tempdir().unwrap();
    let (ran, failed, warnings) = run_watched(&Gate::stuck(".step-6.discarded"), folder.path(), 30, 99);
    ran.unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(Checkpoints::new(folder.path(), 2).steps().unwrap(), [24, 30]);
    let [told] = &warnings[..] else { panic!("a fault that lasts is told once: {warnings:?}") };
    assert!(told.contains("an old checkpoint cannot be removed") && told.contains(".step-6.discarded"), "{told}");
    // Also one that only the last save finds.
    let folder = tempdir().unwrap();
    let (ran, _, warnings) = run_watched(&Gate::stuck(".step-6.discarded"), folder.path(), 18, 99);
    ran.unwrap();
    assert!(warnings.len() == 1, "{warnings:?}");
}
