//! Saving and loading, by all ranks together.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use epl_comm::ProcessGroup;

use super::folder::{BestMark, CheckpointFolder};
use super::note;
use super::saving::{Ended, Job, JobState, Saving};
use super::state::RunState;
use crate::checkpoint::durable::{Disk, FileSystem};
use crate::checkpoint::{Checkpoint, LOOK, Snapshot};
use crate::error::{Error, Result};
use crate::texts::faults;
use crate::trainer::record::Evaluation;
use crate::trainer::settings::Best;

/// Which checkpoint of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointId {
    /// The last one that was finished.
    Latest,
    /// The best one by the metric of the run: see [`Best`].
    Best,
    /// That of one step.
    Step(u64),
}

/// A checkpoint that could not be written, on any rank. The one before still stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedSave {
    /// The step after which it was to be saved.
    pub step: u64,
    /// Why, and on which ranks.
    pub reason: String,
}

/// The checkpoints of a run. Every rank has one, of the same folder; its clones are the same.
///
/// ```
/// # use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, tensor::Tensor};
/// # use epl_core::{Engine, WithLoss, testing, trainer::{CheckpointId, Checkpoints, RunState}};
/// # let out = tempfile::tempdir().expect("there is room for a folder");
/// # let loss = |net: &Linear, rows: &Tensor<2>| net.forward(rows.clone()).powi_scalar(2).mean();
/// testing::run((2, 1, 1), |epl| { // what a trainer does: each rank writes its part, while the next steps go on
///     let mut net = Engine::build(&epl, |at| WithLoss::new(LinearConfig::new(2, 1).init(at), loss), &SgdConfig::new())?;
///     let (checkpoints, world) = (Checkpoints::new(out.path(), 2), epl.context().world());
///     for step in 1..=3 {
///         net.train_batch(&Tensor::ones([4, 2], epl.place().device()), 0.1)?;
///         let state = RunState { step, ..RunState::new(7, "the same rows".into(), "two ranks".into()) };
///         assert!(checkpoints.start(world, &state, net.snapshot()?)?.is_none(), "the one before is whole");
///     }
///     assert!(checkpoints.settle(world)?.is_none());
///     net.load(checkpoints.find(CheckpointId::Latest)?)
/// });
/// assert_eq!(Checkpoints::new(out.path(), 2).steps()?, [2, 3]);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: CheckpointFolder,
    keep_last: usize,
    /// The one that is being written.
    saving: Arc<Mutex<Option<Saving>>>,
}

impl Checkpoints {
    /// The checkpoints in `out/checkpoints`, of which the last `keep_last` stay, and the best.
    pub fn new(out: &Path, keep_last: usize) -> Self {
        Self::on(Arc::new(FileSystem), out, keep_last)
    }

    /// The same on any disk.
    pub fn on(disk: Arc<dyn Disk>, out: &Path, keep_last: usize) -> Self {
        let folder = CheckpointFolder::new(disk, out.join("checkpoints"));
        Self { folder, keep_last: keep_last.max(1), saving: Arc::default() }
    }

    /// The folder that holds them.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The steps that have a checkpoint, ascending.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read.
    pub fn steps(&self) -> Result<Vec<u64>> {
        self.folder.steps()
    }

    /// Removes all of them. For one rank.
    ///
    /// # Errors
    ///
    /// When a file cannot be removed.
    pub fn clear(&self) -> Result<()> {
        self.folder.clear()
    }

    /// The value of the best one of the first `steps` by `best`'s metric, as far as it is known: of a run that went back
    /// before the best one, nothing is.
    ///
    /// # Errors
    ///
    /// When its mark cannot be read.
    pub fn best_value(&self, best: &Best, steps: u64) -> Result<Option<f64>> {
        let mark = self.folder.best()?.filter(|mark| mark.metric == best.metric && mark.step <= steps);
        Ok(mark.map(|mark| mark.value))
    }

    /// A run goes on from the checkpoint of this step: it is the latest from now on, and those of later steps, the best
    /// one too, are not the run's, which removes or replaces them as it comes by. For one rank.
    ///
    /// # Errors
    ///
    /// When the folder cannot be read, or a mark not be written or removed.
    pub fn go_on_from(&self, step: u64) -> Result<()> {
        self.folder.go_on_from(step)
    }

    /// What went wrong beside a checkpoint and was not told yet, such as an old one that cannot be removed. For one rank.
    pub fn take_warnings(&self) -> Vec<Error> {
        self.folder.take_warnings()
    }

    /// Starts to write a checkpoint, each rank what it sets aside here, once the one before is written; what became of
    /// that is returned. Where a rank keeps something in files, what does not fit into memory, all is written before this
    /// returns. Collective.
    ///
    /// Whenever a rank or the machine stops in between, the checkpoint before is still there and still the latest.
    ///
    /// # Errors
    ///
    /// When a peer failed, or the system gives no thread. That a file cannot be written is told by
    /// [`look`](Self::look) and [`settle`](Self::settle).
    pub fn start(&self, world: &ProcessGroup, saved: &RunState, snapshot: Snapshot<'_>) -> Result<Option<FailedSave>> {
        let before = self.settle(world)?;
        let opened = if world.rank() == 0 { self.folder.open(saved.step) } else { Ok(()) };
        let opened = opened.map_err(|error| error.to_string());
        if let Some(mut failed) = agree(world, saved.step, &opened)? {
            if let Some(before) = before {
                failed.reason += &format!("; and that of step {}: {}", before.step, before.reason);
            }
            return Ok(Some(failed));
        }
        let (folder, saved, keep_last) = (self.folder.clone(), saved.clone(), self.keep_last);
        let in_files = world.all_gather_counts(&[i64::from(snapshot.lies_in_files())])?;
        let snapshot = match in_files.iter().any(|rank| rank[0] > 0) {
            true => folder
                .partial(saved.step)
                .and_then(|to| snapshot.write_together(world, folder.disk(), &to))
                .map(|()| None),
            false => snapshot.set_aside().map(Some),
        };
        let job = Job { folder, snapshot, rank: world.rank(), ranks: world.size(), saved, keep_last };
        *self.saving() = Some(Saving::start(job)?);
        Ok(before)
    }

    /// Looks whether a checkpoint that is being written is whole by now, or has failed on some rank and ended on all.
    /// Collective, where one is.
    ///
    /// # Errors
    ///
    /// When a peer failed.
    pub fn look(&self, world: &ProcessGroup) -> Result<Option<FailedSave>> {
        let mut saving = self.saving();
        let Some(under_way) = &mut *saving else { return Ok(None) };
        let has_ended = has_ended(world, under_way)?;
        drop(saving);
        if has_ended { self.settle(world) } else { Ok(None) }
    }

    /// Waits until a checkpoint that is being written is whole, or has failed. Collective, where one is.
    ///
    /// # Errors
    ///
    /// When a peer failed.
    pub fn settle(&self, world: &ProcessGroup) -> Result<Option<FailedSave>> {
        let Some(mut saving) = self.saving().take() else { return Ok(None) };
        // Asked again and again: a collective has a time limit, and a slow disk none.
        while !has_ended(world, &mut saving)? {
            thread::sleep(LOOK);
        }
        let failed = agree(world, saving.step, saving.join())?;
        if failed.is_some() && world.rank() == 0 {
            self.folder.abandon(saving.step);
        }
        Ok(failed)
    }

    /// Marks the checkpoint of an evaluation's step as the best one, by that metric; whether this rank could. Collective;
    /// nothing may be being written.
    ///
    /// # Errors
    ///
    /// When a peer failed.
    pub fn mark_best(&self, world: &ProcessGroup, best: &Best, evaluation: &Evaluation) -> Result<Result<()>> {
        let mark = |value| {
            self.folder.mark_best(&BestMark { step: evaluation.step, metric: best.metric.clone(), value })?;
            self.folder.prune(evaluation.step, self.keep_last);
            Ok(())
        };
        let marked = match evaluation.get(&best.metric).filter(|_| world.rank() == 0) {
            Some(value) => mark(value),
            None => Ok(()),
        };
        world.barrier()?;
        Ok(marked)
    }

    /// Notes in the checkpoint of an evaluation's step what it found. For one rank.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn note_evaluation(&self, evaluation: &Evaluation) -> Result<()> {
        note::write(self.folder.disk(), &self.folder.step(evaluation.step), evaluation)
    }

    /// What was noted in the checkpoint of a step; none if it was not evaluated to the end.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn evaluation(&self, step: u64) -> Result<Option<Evaluation>> {
        note::read(&self.folder.found(step))
    }

    /// The same for all ranks: what the first one reads. Collective.
    ///
    /// # Errors
    ///
    /// When the first rank cannot read the file, or a peer failed.
    pub(in crate::trainer) fn common_evaluation(&self, world: &ProcessGroup, step: u64) -> Result<Option<Evaluation>> {
        let folder = self.folder.found(step);
        let own = if world.rank() == 0 { note::text(&folder)? } else { None };
        let first = world.all_gather_texts(&own.unwrap_or_default())?.swap_remove(0);
        if first.is_empty() { Ok(None) } else { note::of(&folder, &first).map(Some) }
    }

    /// Loads a checkpoint, whichever layout saved it: `read` takes what this rank keeps from it. Collective.
    ///
    /// # Errors
    ///
    /// When there is none, when it was saved by a run set up in another way than `now`, or a file is missing or
    /// damaged.
    pub fn load(
        &self,
        which: CheckpointId,
        world: &ProcessGroup,
        now: &RunState,
        read: impl FnOnce(&Arc<Checkpoint>) -> Result<()>,
    ) -> Result<RunState> {
        let checkpoint = Arc::new(Checkpoint::open(self.find(which)?)?);
        let saved = RunState::of(&checkpoint)?;
        saved.check(now)?;
        read(&checkpoint)?;
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

    /// The folder of a checkpoint.
    ///
    /// # Errors
    ///
    /// When there is none: what is there.
    pub fn find(&self, which: CheckpointId) -> Result<PathBuf> {
        let (step, what) = self.named(which)?;
        let folder = self.folder.found(step);
        if folder.is_dir() { Ok(folder) } else { Err(self.missing(step, what)?) }
    }

    /// The step of the checkpoint that a run goes on from. Where the one that is marked as the latest is not there, such as
    /// one that was removed by hand, it is the newest whole one before, with a [warning](Self::take_warnings). For one rank.
    ///
    /// # Errors
    ///
    /// When there is none: what is there.
    pub fn step_to_resume(&self, which: CheckpointId) -> Result<u64> {
        let (marked, what) = self.named(which)?;
        let is_there = |step: &u64| self.folder.found(*step).is_dir();
        if which != CheckpointId::Latest || is_there(&marked) {
            return Ok(marked);
        }
        let is_whole = |step: &u64| Checkpoint::open(self.folder.found(*step)).is_ok();
        match self.steps()?.into_iter().rev().filter(|step| *step < marked).find(is_whole) {
            Some(step) => {
                self.folder.warn(format!(
                    "`latest` in {} names step-{marked}, which is not there; the run goes on from step-{step}, the newest \
                     before it",
                    self.path().display()
                ));
                Ok(step)
            }
            None => Err(self.missing(marked, what)?),
        }
    }

    /// The step of a checkpoint, and what names it.
    fn named(&self, which: CheckpointId) -> Result<(u64, &'static str)> {
        let (step, what) = match which {
            // A folder that has its name is whole, also where the run was killed before it was marked.
            CheckpointId::Latest => (self.folder.latest()?.or(self.steps()?.last().copied()), "`latest`"),
            CheckpointId::Best => (self.folder.best()?.map(|mark| mark.step), "`best.json`"),
            CheckpointId::Step(step) => (Some(step), "the step that was given"),
        };
        if let Some(step) = step {
            return Ok((step, what));
        }
        let there = self.there()?;
        let advice = "start a new run, or give the folder of an earlier one";
        Err(Error::file(self.path(), format!("no checkpoint is marked in {what} (the folder has {there}); {advice}")))
    }

    /// Why a checkpoint that is named cannot be taken.
    fn missing(&self, step: u64, what: &str) -> Result<Error> {
        let advice = if self.steps()?.is_empty() { "" } else { "; give one of these: train.resume_step" };
        let there = self.there()?;
        let reason = format!("{what} names this checkpoint, and it is not there; the folder has {there}{advice}");
        Ok(Error::file(self.folder.step(step), reason))
    }

    /// The checkpoints that there are, in words.
    fn there(&self) -> Result<String> {
        let names: Vec<String> = self.steps()?.iter().map(|step| format!("step-{step}")).collect();
        Ok(if names.is_empty() { "no checkpoint".to_string() } else { names.join(", ") })
    }

    fn saving(&self) -> MutexGuard<'_, Option<Saving>> {
        self.saving.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether all ranks have ended their work. Collective.
fn has_ended(world: &ProcessGroup, saving: &mut Saving) -> Result<bool> {
    let states = world.all_gather_counts(&[saving.state() as i64])?;
    let is_any = |state: JobState| states.iter().any(|other| other[0] == state as i64);
    if is_any(JobState::Failed) {
        // The first rank waits for parts that never come.
        saving.give_up();
    }
    Ok(!is_any(JobState::Writing))
}

/// What all ranks say of their parts: none, if all are well. Collective.
fn agree(world: &ProcessGroup, step: u64, own: &Ended) -> Result<Option<FailedSave>> {
    Ok(faults(world, own)?.map(|reason| FailedSave { step, reason }))
}
