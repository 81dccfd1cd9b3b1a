//! Opens the folder of a run, new or to be resumed.

use std::path::PathBuf;
use std::sync::Arc;

use epl_comm::ProcessGroup;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::durable::{FileSystem, create_folder};
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::trainer::checkpoint::{CheckpointId, Checkpoints};
use crate::trainer::hook::Hook;
use crate::trainer::launch_mark;
use crate::trainer::run::Run;
use crate::trainer::settings::TrainerConfig;

/// Makes the folder, or resumes the run from a checkpoint. For every rank.
#[derive(Clone, Debug)]
pub struct OpenFolder {
    out: PathBuf,
    checkpoints: Checkpoints,
    resume: bool,
    auto_resume: bool,
    /// What the folder bears from now on.
    launch: Option<String>,
    resume_restarted: bool,
    resume_step: Option<u64>,
    replace: bool,
    saves: bool,
}

/// What ranks are told of a run that begins.
const NONE: i64 = -1;

impl OpenFolder {
    /// Opens `out`, whose checkpoints are `checkpoints`: to resume it, or to replace it, as the settings say.
    pub fn new(out: impl Into<PathBuf>, checkpoints: Checkpoints, config: &TrainerConfig) -> Self {
        let TrainerConfig { resume, auto_resume, resume_restarted, resume_step, replace, save: saves, .. } = *config;
        let (out, launch) = (out.into(), config.launch.clone());
        Self { out, checkpoints, resume, auto_resume, launch, resume_restarted, resume_step, replace, saves }
    }

    /// The step from which the run goes on, if it does. What the first rank finds counts for all. Collective.
    fn resumes_from(&self, world: &ProcessGroup) -> Result<Option<u64>> {
        let own = if world.rank() == 0 { self.found()? } else { None };
        let first = world.all_gather_counts(&[own.map_or(NONE, |step| step as i64)])?[0][0];
        Ok((first != NONE).then_some(first as u64))
    }

    /// What one rank finds.
    fn found(&self) -> Result<Option<u64>> {
        let is_saved = || Ok::<_, Error>(!self.checkpoints.steps()?.is_empty());
        let launch = self.launch.as_ref().filter(|_| self.resume_restarted);
        let is_restarted = match launch {
            Some(launch) => launch_mark::bears(&self.out, launch)? && is_saved()?,
            None => false,
        };
        let which = match self.resume_step {
            // It has gone back to that step before it was restarted, and is further by now, if it saves.
            _ if is_restarted && (self.saves || self.resume_step.is_none()) => CheckpointId::Latest,
            Some(step) if self.resume => CheckpointId::Step(step),
            _ if self.resume || self.auto_resume && is_saved()? => CheckpointId::Latest,
            _ => return Ok(None),
        };
        self.checkpoints.step_to_resume(which).map(Some)
    }

    /// Refuses folders of which each machine has its own. No communication: who fails ends the launch.
    fn check_shared(&self, step: u64, world: &ProcessGroup) -> Result<()> {
        if world.rank() == 0 || self.checkpoints.find(CheckpointId::Step(step)).is_ok() {
            return Ok(());
        }
        Err(Error::file(
            &self.out,
            format!(
                "the first rank goes on from the checkpoint of step {step}, and {} does not find it here; give all ranks the same \
                 folder",
                world.global(world.rank())
            ),
        ))
    }

    /// Makes the folder of a new run. The work of one rank.
    fn make(&self) -> Result<()> {
        create_folder(&FileSystem, &self.out)?;
        match self.checkpoints.steps()?.last() {
            None => Ok(()),
            Some(_) if self.replace => self.checkpoints.clear(),
            Some(step) => Err(Error::file(
                &self.out,
                format!(
                    "the folder holds a run that was saved after step {step}; resume it (train.resume = auto), choose \
                     another folder, or allow it to be replaced (`TrainerConfig::replace`)"
                ),
            )),
        }
    }
}

impl<M: Model> Hook<M> for OpenFolder {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        let world = run.context().world().clone();
        if let Some(step) = self.resumes_from(&world)? {
            let now = run.saved().clone();
            let engine = run.engine_mut();
            let read = |checkpoint: &Arc<Checkpoint>| engine.restore(checkpoint);
            self.check_shared(step, &world)?;
            let saved = self.checkpoints.load(CheckpointId::Step(step), &world, &now, read)?;
            run.resume(saved);
            if run.is_first_rank() {
                // All have read it. A run that is killed before its first checkpoint goes on from the same; one that saves none
                // only looks.
                if self.saves && !run.is_over() {
                    self.checkpoints.go_on_from(step)?;
                }
                run.forgive_all(self.checkpoints.take_warnings());
            }
        } else if run.is_first_rank() {
            self.make()?;
        }
        if let Some(launch) = self.launch.as_ref().filter(|_| run.is_first_rank()) {
            launch_mark::make(&self.out, launch)?;
        }
        // Nobody writes before the folder is there.
        Ok(world.barrier()?)
    }
}
