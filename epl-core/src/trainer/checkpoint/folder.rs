//! The folder of a run's checkpoints: names, marks, and which of them stay. The work of one rank.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::trainer::durable::{rename, replace, sync_folder, sync_parent};

/// The checkpoints of a run on disk.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

/// `best.json`: which checkpoint is the best, and by what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BestMark {
    pub step: u64,
    pub metric: String,
    pub value: f64,
}

impl Folder {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn step(&self, step: u64) -> PathBuf {
        self.0.join(format!("step-{step}"))
    }

    pub(super) fn partial(&self, step: u64) -> PathBuf {
        self.0.join(format!(".step-{step}.partial"))
    }

    /// The steps that have a checkpoint, ascending; none if there is no folder.
    pub(super) fn steps(&self) -> Result<Vec<u64>> {
        let number = |name: String| name.strip_prefix("step-")?.parse().ok();
        let mut steps: Vec<u64> = self.names()?.into_iter().filter_map(number).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    fn names(&self) -> Result<Vec<String>> {
        let error = |error| Error::file(&self.0, error);
        match fs::read_dir(&self.0) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(cause) => Err(error(cause)),
            Ok(entries) => entries
                .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()).map_err(error))
                .collect(),
        }
    }

    /// Makes the folder of a checkpoint in the making, and removes what earlier attempts left.
    pub(super) fn open(&self, step: u64) -> Result<()> {
        for name in self.names()? {
            if name.starts_with(".step-") {
                remove(&self.0.join(name))?;
            }
        }
        let partial = self.partial(step);
        fs::create_dir_all(&partial).map_err(|error| Error::file(&partial, error))?;
        // Before the first checkpoint there was no folder of checkpoints either.
        sync_parent(&self.0)
    }

    /// Gives a finished checkpoint its name, then marks it as the latest.
    pub(super) fn commit(&self, step: u64) -> Result<()> {
        let (partial, finished) = (self.partial(step), self.step(step));
        sync_folder(&partial)?;
        if finished.exists() {
            // A run that went on from an earlier checkpoint comes by again. A folder cannot be renamed over another.
            rename(&finished, &self.0.join(format!(".step-{step}.old")))?;
        }
        rename(&partial, &finished)?;
        replace(&self.0.join("latest"), format!("step-{step}\n").as_bytes())
    }

    /// The step that is marked as the latest; none if no checkpoint was ever finished.
    pub(super) fn latest(&self) -> Result<Option<u64>> {
        let path = self.0.join("latest");
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
        let path = self.0.join("best.json");
        let text = serde_json::to_vec(mark).map_err(|error| Error::file(&path, error))?;
        replace(&path, &text)
    }

    pub(super) fn best(&self) -> Result<Option<BestMark>> {
        let path = self.0.join("best.json");
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| Error::file(&path, format!("not the mark of the best checkpoint: {error}"))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file(&path, error)),
        }
    }

    /// Removes all but the last `keep` checkpoints, the one just saved, and the best.
    pub(super) fn prune(&self, saved: u64, keep: usize) -> Result<()> {
        let best = self.best()?.map(|mark| mark.step);
        let steps = self.steps()?;
        let old = &steps[..steps.len().saturating_sub(keep)];
        for step in old.iter().copied().filter(|step| *step != saved && Some(*step) != best) {
            remove(&self.step(step))?;
        }
        let replaced = self.0.join(format!(".step-{saved}.old"));
        if replaced.exists() { remove(&replaced) } else { Ok(()) }
    }

    /// Removes every checkpoint and mark, the marks first.
    pub(super) fn clear(&self) -> Result<()> {
        for name in ["latest", "best.json"] {
            match fs::remove_file(self.0.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::file(self.0.join(name), error)),
                _ => {}
            }
        }
        self.steps()?.into_iter().try_for_each(|step| remove(&self.step(step)))
    }
}

fn remove(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).map_err(|error| Error::file(folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(steps: &[u64]) -> (tempfile::TempDir, Folder) {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::new(temporary.path().join("checkpoints"));
        for &step in steps {
            folder.open(step).unwrap();
            fs::write(folder.partial(step).join("state.json"), step.to_string()).unwrap();
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
        fs::write(folder.partial(100).join("state.json"), "again").unwrap();
        folder.commit(100).unwrap();
        folder.prune(100, 1).unwrap();
        assert_eq!(fs::read_to_string(folder.step(100).join("state.json")).unwrap(), "again");
        assert_eq!(folder.latest().unwrap(), Some(100));
        assert_eq!(folder.names().unwrap().iter().filter(|name| name.starts_with('.')).count(), 0);
    }

    #[test]
    fn what_a_crash_left_is_neither_read_nor_kept() {
        let (_temporary, folder) = folder_with(&[100]);
        folder.open(200).unwrap();
        assert_eq!((folder.steps().unwrap(), folder.latest().unwrap()), (vec![100], Some(100)));
        folder.open(300).unwrap();
        assert!(!folder.partial(200).exists());
    }

    #[test]
    fn a_folder_that_is_not_there_has_no_checkpoint_and_a_cleared_one_neither() {
        let (_temporary, folder) = folder_with(&[]);
        assert_eq!((folder.steps().unwrap(), folder.latest().unwrap(), folder.best().unwrap()), (vec![], None, None));
        let (_temporary, folder) = folder_with(&[1, 2]);
        folder.clear().unwrap();
        assert_eq!((folder.steps().unwrap(), folder.latest().unwrap()), (vec![], None));
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
