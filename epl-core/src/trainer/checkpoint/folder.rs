//! The folder of a run's checkpoints: names, marks, and which of them stay. The work of one rank.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::checkpoint::durable::{
    AtomicFolder, Disk, found, remove_folder, rename, replace_on, sync_folder, sync_parent,
};
use crate::error::{Error, Result};

const NOT_REMOVED: &str = "an old checkpoint cannot be removed; the next save tries again";
const NOT_IN_ORDER: &str = "what a crash left of a checkpoint cannot be put in order; the next save tries again";

/// The checkpoints of a run on disk. Clones know the same.
#[derive(Clone, Debug)]
pub(super) struct CheckpointFolder {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    known: Arc<Mutex<Known>>,
}

/// What the disk does not say.
#[derive(Debug, Default)]
struct Known {
    /// The steps of checkpoints that a run which went back has left behind, and has not replaced yet.
    abandoned: BTreeSet<u64>,
    /// What went wrong that a run can go on with, and was not told yet.
    warnings: Vec<String>,
}

/// `best.json`: which checkpoint is the best, and by what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BestMark {
    pub step: u64,
    pub metric: String,
    pub value: f64,
}

impl CheckpointFolder {
    pub(super) fn new(disk: Arc<dyn Disk>, path: PathBuf) -> Self {
        Self { disk, path, known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what went wrong until it is [told](Self::take_warnings).
    pub(super) fn warn(&self, warning: String) {
        let warnings = &mut self.known().warnings;
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    /// What could not be removed, or renamed, stands in nobody's way.
    fn warn_of_left(&self, what: &str, ended: Result<()>) {
        if let Err(error) = ended {
            self.warn(format!("{what}: {error}"));
        }
    }

    /// What went wrong and was not told yet.
    pub(super) fn take_warnings(&self) -> Vec<Error> {
        std::mem::take(&mut self.known().warnings).into_iter().map(Error::invalid).collect()
    }

    pub(super) fn disk(&self) -> &dyn Disk {
        self.disk.as_ref()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn step(&self, step: u64) -> PathBuf {
        self.path.join(format!("step-{step}"))
    }

    /// The names that a checkpoint has one after the other.
    fn checkpoint(&self, step: u64) -> Result<AtomicFolder> {
        AtomicFolder::new(&self.step(step))
    }

    /// Where a checkpoint is written.
    pub(super) fn partial(&self, step: u64) -> Result<PathBuf> {
        Ok(self.checkpoint(step)?.partial().to_path_buf())
    }

    /// Where a checkpoint is: after a crash between two renames it has the name of one that is replaced.
    pub(super) fn found(&self, step: u64) -> PathBuf {
        found(&self.step(step))
    }

    /// The steps that have a checkpoint, ascending; none if there is no folder.
    pub(super) fn steps(&self) -> Result<Vec<u64>> {
        let names = self.names()?;
        let steps: BTreeSet<u64> = names.iter().filter_map(|name| named(name).or_else(|| replaced(name))).collect();
        Ok(steps.into_iter().collect())
    }

    fn names(&self) -> Result<Vec<String>> {
        let error = |error| Error::file(&self.path, error);
        match fs::read_dir(&self.path) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(cause) => Err(error(cause)),
            Ok(entries) => entries
                .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()).map_err(error))
                .collect(),
        }
    }

    /// Makes the folder of a checkpoint in the making, and puts in order what earlier attempts left. Only what stands in
    /// the way of this step is an error.
    pub(super) fn open(&self, step: u64) -> Result<()> {
        self.recover();
        self.checkpoint(step)?.open(self.disk())?;
        sync_folder(self.disk(), &self.path)?;
        // Before the first checkpoint there was no folder of checkpoints either; who made it may have been killed.
        sync_parent(self.disk(), &self.path)
    }

    /// Puts in order what a crash left: a checkpoint that was to be replaced has its name again, the rest is removed.
    fn recover(&self) {
        let names = self.names().map_err(|error| self.warn(error.to_string()));
        for name in names.unwrap_or_default() {
            if let Some(step) = replaced(&name) {
                self.warn_of_left(
                    NOT_IN_ORDER,
                    self.checkpoint(step).and_then(|checkpoint| checkpoint.recover(self.disk())),
                );
            } else if is_left(&name) {
                self.warn_of_left(NOT_REMOVED, remove_folder(self.disk(), &self.path.join(name)));
            }
        }
    }

    /// Removes a checkpoint in the making that failed; what cannot be removed now, the next one removes.
    pub(super) fn abandon(&self, step: u64) {
        let _ = self.partial(step).and_then(|partial| remove_folder(self.disk(), &partial));
    }

    /// Gives a finished checkpoint its name, then marks it as the latest.
    pub(super) fn commit(&self, step: u64) -> Result<()> {
        // A run that went on from an earlier checkpoint comes by again: there may be one of this step.
        self.checkpoint(step)?.commit(self.disk())?;
        self.known().abandoned.remove(&step);
        self.mark_latest(step)
    }

    fn mark_latest(&self, step: u64) -> Result<()> {
        replace_on(self.disk(), &self.path.join("latest"), format!("step-{step}\n").as_bytes())
    }

    /// A run goes on from this step: its checkpoint is the latest from now on, also for one that is started again, and later
    /// ones are left behind.
    pub(super) fn go_on_from(&self, step: u64) -> Result<()> {
        let left: BTreeSet<u64> = self.steps()?.into_iter().filter(|other| *other > step).collect();
        if !left.is_empty() {
            self.warn(format!(
                "the run has gone back to step {step}, which is the latest from now on; checkpoints of steps {left:?} are left \
                 behind, and replaced or removed as it comes by"
            ));
        }
        self.known().abandoned = left;
        // A mark that cannot be read is replaced.
        if !matches!(self.latest(), Ok(Some(latest)) if latest == step) {
            self.mark_latest(step)?;
        }
        // The best of those left behind would stay for good. Who needs a mark that cannot be read tells of it.
        if matches!(self.best(), Ok(Some(mark)) if mark.step > step) { self.forget_best() } else { Ok(()) }
    }

    /// The step that is marked as the latest; none if no checkpoint was ever finished.
    pub(super) fn latest(&self) -> Result<Option<u64>> {
        let path = self.path.join("latest");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file(&path, error)),
        };
        match named(text.trim()) {
            Some(step) => Ok(Some(step)),
            None => Err(Error::file(
                &path,
                format!("it says {:?}, and should name a folder such as `step-100`", text.trim()),
            )),
        }
    }

    pub(super) fn mark_best(&self, mark: &BestMark) -> Result<()> {
        let path = self.path.join("best.json");
        let text = serde_json::to_vec(mark).map_err(|error| Error::file(&path, error))?;
        replace_on(self.disk(), &path, &text)
    }

    pub(super) fn best(&self) -> Result<Option<BestMark>> {
        let path = self.path.join("best.json");
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
                Error::file(&path, format!("not the mark of the best checkpoint: {error}; remove it"))
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file(&path, error)),
        }
    }

    /// Removes the mark of the best one.
    fn forget_best(&self) -> Result<()> {
        let path = self.path.join("best.json");
        self.disk().remove_file(&path).map_err(|error| Error::file(&path, error))?;
        sync_parent(self.disk(), &path)
    }

    /// Removes all but the last `keep` checkpoints, the one just saved, and the best. What cannot be removed is a warning.
    pub(super) fn prune(&self, saved: u64, keep: usize) {
        match self.old(saved, keep) {
            Ok(old) => old.into_iter().for_each(|step| self.warn_of_left(NOT_REMOVED, self.discard(step))),
            // Which is the best is not known: none is removed.
            Err(error) => self.warn(format!("no old checkpoint is removed: {error}")),
        }
        self.warn_of_left(NOT_REMOVED, self.checkpoint(saved).and_then(|saved| saved.forget_replaced(self.disk())));
    }

    /// The steps of the checkpoints that are to go.
    fn old(&self, saved: u64, keep: usize) -> Result<Vec<u64>> {
        let best = self.best()?.map(|mark| mark.step);
        // Later ones are of a run that was gone back behind: they are not counted, and go as this one comes by.
        let steps = self.steps()?.into_iter().filter(|step| *step <= saved);
        let known = self.known();
        let (mut old, own): (Vec<u64>, Vec<u64>) = steps.partition(|step| known.abandoned.contains(step));
        old.extend_from_slice(&own[..own.len().saturating_sub(keep)]);
        old.retain(|step| *step != saved && Some(*step) != best);
        Ok(old)
    }

    /// Removes every checkpoint and mark, the marks first.
    pub(super) fn clear(&self) -> Result<()> {
        for name in ["latest", "best.json"] {
            match self.disk.remove_file(&self.path.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::file(self.path.join(name), error));
                }
                _ => {}
            }
        }
        // What a crash left would have its name again.
        self.recover();
        self.steps()?.into_iter().try_for_each(|step| self.discard(step))
    }

    /// Removes a checkpoint: first its name, so that half of it is none.
    fn discard(&self, step: u64) -> Result<()> {
        let discarded = self.path.join(format!(".step-{step}.discarded"));
        rename(self.disk(), &self.step(step), &discarded)?;
        remove_folder(self.disk(), &discarded)
    }
}

/// The step of a checkpoint, by the name of its folder; none of a name that only looks like one, such as `step-0100`.
fn named(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (name == format!("step-{step}")).then_some(step)
}

/// The step of a checkpoint that was to be replaced, by the name of its folder.
fn replaced(name: &str) -> Option<u64> {
    named(name.strip_prefix('.')?.strip_suffix(".old")?)
}

/// Whether a folder is one that was in the making or to be removed.
fn is_left(name: &str) -> bool {
    let step = name.strip_prefix('.').and_then(|name| name.rsplit_once('.'));
    step.is_some_and(|(step, end)| named(step).is_some() && ["partial", "discarded"].contains(&end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::durable::FileSystem;

    fn folder_with(steps: &[u64]) -> (tempfile::TempDir, CheckpointFolder) {
        let temporary = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(Arc::new(FileSystem), temporary.path().join("checkpoints"));
        for &step in steps {
            folder.open(step).unwrap();
            fs::write(folder.partial(step).unwrap().join("index.json"), step.to_string()).unwrap();
            folder.commit(step).unwrap();
        }
        (temporary, folder)
    }

    #[test]
    fn the_last_ones_and_the_best_stay() {
        let (_temporary, folder) = folder_with(&[100, 200, 300, 1000]);
        folder.mark_best(&BestMark { step: 100, metric: "bleu".into(), value: 12.5 }).unwrap();
        folder.prune(1000, 2);
        assert_eq!(warnings(&folder), "");
        assert_eq!(folder.steps().unwrap(), [100, 300, 1000]);
        assert_eq!(folder.best().unwrap().unwrap().value, 12.5);
        assert_eq!(folder.latest().unwrap(), Some(1000));
    }

    fn warnings(folder: &CheckpointFolder) -> String {
        folder.take_warnings().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    fn save(folder: &CheckpointFolder, step: u64, keep: usize) {
        folder.open(step).unwrap();
        folder.commit(step).unwrap();
        folder.prune(step, keep);
    }

    /// Of 200 to 600 the run goes back to 300 and saves others: those that it left behind are neither counted nor kept.
    #[test]
    fn what_a_run_left_behind_does_not_push_out_its_own() {
        let (_temporary, folder) = folder_with(&[200, 300, 400, 500, 600]);
        let best = |step| BestMark { step, metric: "valid_loss".into(), value: 1.0 };
        folder.mark_best(&best(300)).unwrap();
        folder.go_on_from(300).unwrap();
        assert_eq!(folder.best().unwrap().map(|mark| mark.step), Some(300), "it is the run's own");
        folder.mark_best(&best(600)).unwrap();
        folder.go_on_from(300).unwrap();
        assert!(folder.best().unwrap().is_none());
        let told = warnings(&folder);
        assert!(told.contains("gone back to step 300") && told.contains("{400, 500, 600}"), "{told}");
        assert_eq!((folder.latest().unwrap(), folder.steps().unwrap().len()), (Some(300), 5), "nothing is removed yet");
        save(&folder, 350, 2);
        assert_eq!(folder.steps().unwrap(), [300, 350, 400, 500, 600]);
        save(&folder, 450, 2);
        assert_eq!(folder.steps().unwrap(), [350, 450, 500, 600]);
        // One that is replaced is the run's own.
        save(&folder, 500, 2);
        save(&folder, 510, 2);
        assert_eq!(folder.steps().unwrap(), [500, 510, 600]);
        assert_eq!(warnings(&folder), "");
    }

    #[test]
    fn names_that_only_look_like_those_of_checkpoints_are_left_alone() {
        let (_temporary, folder) = folder_with(&[1, 2, 3]);
        let others = ["step-0001", "step-+1", "step-1.bak", ".step-1.partial.swp", ".step-x.partial", ".step-01.old"];
        others.iter().for_each(|name| fs::create_dir(folder.path().join(name)).unwrap());
        fs::write(folder.path().join(".step-notes.swp"), "").unwrap();
        save(&folder, 4, 1);
        assert_eq!(warnings(&folder), "");
        assert_eq!(folder.steps().unwrap(), [4]);
        assert!(others.iter().all(|name| folder.path().join(name).is_dir()));
    }

    #[test]
    fn where_one_cannot_be_removed_the_others_are_and_it_is_told() {
        let (_temporary, folder) = folder_with(&[1, 2, 3, 4]);
        // A name that is taken.
        fs::create_dir_all(folder.path().join(".step-1.discarded/taken")).unwrap();
        folder.prune(4, 1);
        assert_eq!(folder.steps().unwrap(), [1, 4]);
        let told = warnings(&folder);
        assert!(told.contains("cannot be removed") && told.contains("step-1"), "{told}");
        assert_eq!(warnings(&folder), "");
        save(&folder, 5, 1);
        assert_eq!(folder.steps().unwrap(), [5]);
        // Nor is any where the best is not known.
        fs::write(folder.path().join("best.json"), "{").unwrap();
        save(&folder, 6, 1);
        let told = warnings(&folder);
        assert!(folder.steps().unwrap() == [5, 6] && told.contains("no old checkpoint is removed: "), "{told}");
        assert!(told.contains("best.json") && told.contains("remove it"), "{told}");
    }

    #[test]
    fn a_step_that_is_saved_again_replaces_the_one_before() {
        let (_temporary, folder) = folder_with(&[100, 200]);
        folder.open(100).unwrap();
        fs::write(folder.partial(100).unwrap().join("index.json"), "again").unwrap();
        folder.commit(100).unwrap();
        folder.prune(100, 1);
        assert_eq!(warnings(&folder), "");
        assert_eq!(fs::read_to_string(folder.step(100).join("index.json")).unwrap(), "again");
        assert_eq!(folder.latest().unwrap(), Some(100));
        assert_eq!(folder.names().unwrap().iter().filter(|name| name.starts_with('.')).count(), 0);
    }

    #[test]
    fn what_a_crash_left_is_neither_read_nor_kept() {
        let (_temporary, folder) = folder_with(&[100]);
        folder.open(200).unwrap();
        assert_eq!((folder.steps().unwrap(), folder.latest().unwrap()), (vec![100], Some(100)));
        folder.open(300).unwrap();
        assert!(!folder.partial(200).unwrap().exists());
    }

    #[test]
    fn one_that_a_crash_left_between_two_names_is_found_and_stays() {
        let (_temporary, folder) = folder_with(&[100]);
        let replaced = folder.path().join(".step-100.old");
        fs::rename(folder.step(100), &replaced).unwrap();
        assert_eq!((folder.steps().unwrap(), folder.found(100)), (vec![100], replaced.clone()));
        folder.open(200).unwrap();
        assert_eq!((folder.steps().unwrap(), folder.found(100)), (vec![100], folder.step(100)));
    }

    #[test]
    fn a_folder_that_is_not_there_has_no_checkpoint_and_a_cleared_one_neither() {
        let (_temporary, folder) = folder_with(&[]);
        assert_eq!((folder.steps().unwrap(), folder.latest().unwrap(), folder.best().unwrap()), (vec![], None, None));
        let (_temporary, folder) = folder_with(&[1, 2, 3]);
        fs::rename(folder.step(2), folder.path().join(".step-2.old")).unwrap();
        folder.open(4).unwrap();
        fs::rename(folder.step(1), folder.path().join(".step-1.old")).unwrap();
        folder.clear().unwrap();
        assert_eq!((folder.steps().unwrap(), folder.latest().unwrap()), (vec![], None));
        assert!(folder.names().unwrap().is_empty());
    }

    #[test]
    fn marks_that_say_something_else_are_named() {
        let (_temporary, folder) = folder_with(&[1]);
        fs::write(folder.path().join("latest"), "newest").unwrap();
        assert!(folder.latest().unwrap_err().to_string().contains("newest"));
        fs::write(folder.path().join("best.json"), "{").unwrap();
        assert!(folder.best().unwrap_err().to_string().contains("best.json"));
    }
}
