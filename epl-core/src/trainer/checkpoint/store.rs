//! Saving and loading, by all ranks together.

use std::fs;
use std::path::{Path, PathBuf};

use epl_comm::ProcessGroup;

use super::folder::{BestMark, Folder};
use super::note;
use super::seal::{seal, verify};
use super::state::Saved;
use crate::error::{Error, Result};
use crate::trainer::record::Evaluation;
use crate::trainer::settings::Best;

/// Which checkpoint of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The last one that was finished.
    Latest,
    /// The best one by the metric of the run: see [`Best`].
    Best,
    /// That of one step.
    Step(u64),
}

/// The checkpoints of a run. Every rank has one, of the same folder.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: Folder,
    keep_last: usize,
}

impl Checkpoints {
    /// The checkpoints in `out/checkpoints`, of which the last `keep_last` stay, and the best.
    pub fn new(out: &Path, keep_last: usize) -> Self {
        Self { folder: Folder::new(out.join("checkpoints")), keep_last: keep_last.max(1) }
    }

    /// The folder that holds them.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The steps that have a checkpoint, ascending.
    pub fn steps(&self) -> Result<Vec<u64>> {
        self.folder.steps()
    }

    /// Removes all of them. For one rank.
    pub fn clear(&self) -> Result<()> {
        self.folder.clear()
    }

    /// The value of the best one so far by `best`'s metric.
    pub fn best_value(&self, best: &Best) -> Result<Option<f64>> {
        Ok(self.folder.best()?.filter(|mark| mark.metric == best.metric).map(|mark| mark.value))
    }

    /// Saves a checkpoint: `write` writes this rank's part into the folder it is given. Collective.
    ///
    /// Whenever a rank or the machine stops in between, the checkpoint before is still there and still the latest.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn save(&self, world: &ProcessGroup, saved: &Saved, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let (folder, step, first) = (&self.folder, saved.step, world.rank() == 0);
        if first {
            folder.open(step)?;
        }
        world.barrier()?;
        let mine = rank_folder(&folder.partial(step), world.rank());
        fs::create_dir(&mine).map_err(|error| Error::file(&mine, error))?;
        write(&mine)?;
        seal(&mine)?;
        world.barrier()?;
        if first {
            saved.write(&folder.partial(step).join("state.json"))?;
            folder.commit(step)?;
            folder.prune(step, self.keep_last)?;
        }
        // Nobody goes on, or ends, before the checkpoint is whole.
        world.barrier()?;
        Ok(())
    }

    /// Marks the checkpoint of an evaluation's step as the best one, by that metric. Collective.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn mark_best(&self, world: &ProcessGroup, best: &Best, evaluation: &Evaluation) -> Result<()> {
        if world.rank() == 0
            && let Some(value) = evaluation.get(&best.metric)
        {
            self.folder.mark_best(&BestMark { step: evaluation.step, metric: best.metric.clone(), value })?;
            self.folder.prune(evaluation.step, self.keep_last)?;
        }
        world.barrier()?;
        Ok(())
    }

    /// Notes in the checkpoint of an evaluation's step what it found. For one rank.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn note_evaluation(&self, evaluation: &Evaluation) -> Result<()> {
        note::write(&self.folder.step(evaluation.step), evaluation)
    }

    /// What was noted in the checkpoint of a step; none if it was not evaluated to the end.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn evaluation(&self, step: u64) -> Result<Option<Evaluation>> {
        note::read(&self.folder.step(step))
    }

    /// Loads a checkpoint: `read` reads this rank's part from the folder it is given. Collective.
    ///
    /// # Errors
    ///
    /// When there is none, when it was saved by a run set up in another way than `now`, or a file is missing or
    /// damaged.
    pub fn load(
        &self,
        which: Which,
        world: &ProcessGroup,
        now: &Saved,
        read: impl FnOnce(&Path, &Saved) -> Result<()>,
    ) -> Result<Saved> {
        let folder = self.find(which)?;
        let saved = Saved::read(&folder.join("state.json"))?;
        saved.check(now)?;
        let mine = rank_folder(&folder, world.rank());
        verify(&mine)?;
        read(&mine, &saved)?;
        // Ranks on machines that do not share the folder could have found different ones.
        let steps = world.all_gather_counts(&[saved.step as i64])?;
        match steps.iter().position(|step| step[0] != saved.step as i64) {
            None => Ok(saved),
            Some(other) => Err(Error::invalid(format!(
                "this rank found the checkpoint of step {} and {} that of step {} in {}; give all ranks the same \
                 folder",
                saved.step,
                world.global(other),
                steps[other][0],
                self.path().display()
            ))),
        }
    }

    fn find(&self, which: Which) -> Result<PathBuf> {
        let (step, what) = match which {
            Which::Latest => (self.folder.latest()?, "`latest`"),
            Which::Best => (self.folder.best()?.map(|mark| mark.step), "`best.json`"),
            Which::Step(step) => (Some(step), "the call"),
        };
        let there = || -> Result<String> {
            let names: Vec<String> = self.steps()?.iter().map(|step| format!("step-{step}")).collect();
            Ok(if names.is_empty() { "no checkpoint".to_string() } else { names.join(", ") })
        };
        let Some(step) = step else {
            return Err(Error::file(
                self.path(),
                format!(
                    "no checkpoint is marked in {what} (the folder has {}); start a new run, or give the folder of \
                     an earlier one",
                    there()?
                ),
            ));
        };
        let folder = self.folder.step(step);
        if folder.is_dir() {
            return Ok(folder);
        }
        Err(Error::file(
            &folder,
            format!("{what} names this checkpoint, and it is not there; the folder has {}", there()?),
        ))
    }
}

fn rank_folder(checkpoint: &Path, rank: usize) -> PathBuf {
    checkpoint.join(format!("rank-{rank}"))
}
