//! The folder of a run's checkpoints: names, marks, and which of them stay. The work of one rank.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::checkpoint::durable::{
    AtomicFolder, Disk, found, remove_folder, rename, replace_on, sync_folder, sync_parent,
};
use crate::error::{Error, Result};

/// The checkpoints of a run on disk.
#[derive(Clone, Debug)]
pub(super) struct CheckpointFolder {
    disk: Arc<dyn Disk>,
    path: PathBuf,
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
        Self { disk, path }
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
        let number = |name: &str| name.strip_prefix("step-")?.parse().ok();
        let names = self.names()?;
        let steps: BTreeSet<u64> = names.iter().filter_map(|name| number(name).or_else(|| replaced(name))).collect();
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

    /// Makes the folder of a checkpoint in the making, and puts in order what earlier attempts left.
    pub(super) fn open(&self, step: u64) -> Result<()> {
        self.recover()?;
        self.checkpoint(step)?.open(self.disk())?;
        sync_folder(self.disk(), &self.path)?;
        // Before the first checkpoint there was no folder of checkpoints either; who made it may have been killed.
        sync_parent(self.disk(), &self.path)
    }

    /// Puts in order what a crash left: a checkpoint that was to be replaced has its name again, the rest is removed.
    fn recover(&self) -> Result<()> {
        for name in self.names()? {
            match replaced(&name) {
                Some(step) => self.checkpoint(step)?.recover(self.disk())?,
                None if name.starts_with(".step-") => remove_folder(self.disk(), &self.path.join(name))?,
                None => {}
            }
        }
        Ok(())
    }

    /// Removes a checkpoint in the making that failed; what cannot be removed now, the next one removes.
    pub(super) fn abandon(&self, step: u64) {
        let _ = self.partial(step).and_then(|partial| remove_folder(self.disk(), &partial));
    }

    /// Gives a finished checkpoint its name, then marks it as the latest.
    pub(super) fn commit(&self, step: u64) -> Result<()> {
        // A run that went on from an earlier checkpoint comes by again: there may be one of this step.
        self.checkpoint(step)?.commit(self.disk())?;
        replace_on(self.disk(), &self.path.join("latest"), format!("step-{step}\n").as_bytes())
    }

    /// The step that is marked as the latest; none if no checkpoint was ever finished.
    pub(super) fn latest(&self) -> Result<Option<u64>> {
        let path = self.path.join("latest");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::file(&path, error)),
        };
        match text.trim().strip_prefix("step-").and_then(|number| number.parse().ok()) {
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
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| Error::file(&path, format!("not the mark of the best checkpoint: {error}"))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file(&path, error)),
        }
    }

    /// Removes the mark of the best one.
    pub(super) fn forget_best(&self) -> Result<()> {
        let path = self.path.join("best.json");
        self.disk().remove_file(&path).map_err(|error| Error::file(&path, error))?;
        sync_parent(self.disk(), &path)
    }

    /// Removes all but the last `keep` checkpoints, the one just saved, and the best.
    pub(super) fn prune(&self, saved: u64, keep: usize) -> Result<()> {
        let best = self.best()?.map(|mark| mark.step);
        // Later ones are of a run that was gone back behind: they are not counted, and replaced as this one comes by.
        let steps: Vec<u64> = self.steps()?.into_iter().filter(|step| *step <= saved).collect();
        let old = &steps[..steps.len().saturating_sub(keep)];
        for step in old.iter().copied().filter(|step| *step != saved && Some(*step) != best) {
            self.discard(step)?;
        }
        self.checkpoint(saved)?.forget_replaced(self.disk())
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
        self.recover()?;
        self.steps()?.into_iter().try_for_each(|step| self.discard(step))
    }

    /// Removes a checkpoint: first its name, so that half of it is none.
    fn discard(&self, step: u64) -> Result<()> {
        let discarded = self.path.join(format!(".step-{step}.discarded"));
        rename(self.disk(), &self.step(step), &discarded)?;
        remove_folder(self.disk(), &discarded)
    }
}

/// The step of a checkpoint that was to be replaced, by the name of its folder.
fn replaced(name: &str) -> Option<u64> {
    name.strip_prefix(".step-")?.strip_suffix(".old")?.parse().ok()
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
        folder.prune(1000, 2).unwrap();
        assert_eq!(folder.steps().unwrap(), [100, 300, 1000]);
        assert_eq!(folder.best().unwrap().unwrap().value, 12.5);
        assert_eq!(folder.latest().unwrap(), Some(1000));
    }

    #[test]
    fn a_step_that_is_saved_again_replaces_the_one_before() {
        let (_temporary, folder) = folder_with(&[100, 200]);
        folder.open(100).unwrap();
        fs::write(folder.partial(100).unwrap().join("index.json"), "again").unwrap();
        folder.commit(100).unwrap();
        folder.prune(100, 1).unwrap();
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
