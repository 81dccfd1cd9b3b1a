//! Opens the folder of a run, new or to be resumed.

use std::path::PathBuf;
use std::sync::Arc;

use epl_comm::{ProcessGroup, ReduceOp};

use crate::checkpoint::Checkpoint;
use crate::checkpoint::durable::{FileSystem, create_folder};
use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::trainer::checkpoint::{CheckpointId, Checkpoints};
use crate::trainer::hook::Hook;
use crate::trainer::launch_mark;
use crate::trainer::run::Run;
use crate::trainer::settings::TrainerConfig;

/// Makes the folder, or resumes the run from its latest checkpoint. For every rank.
#[derive(Clone, Debug)]
pub struct OpenFolder {
    out: PathBuf,
    checkpoints: Checkpoints,
    resume: bool,
    auto_resume: bool,
    /// What the folder bears from now on.
    launch: Option<String>,
    resume_restarted: bool,
    which: CheckpointId,
    replace: bool,
}

impl OpenFolder {
    /// Opens `out`, whose checkpoints are `checkpoints`: to resume it, or to replace it, as the settings say.
    pub fn new(out: impl Into<PathBuf>, checkpoints: Checkpoints, config: &TrainerConfig) -> Self {
        let which = config.resume_step.map_or(CheckpointId::Latest, CheckpointId::Step);
        let TrainerConfig { resume, auto_resume, resume_restarted, replace, .. } = *config;
        let (out, launch) = (out.into(), config.launch.clone());
        Self { out, checkpoints, resume, auto_resume, launch, resume_restarted, which, replace }
    }

    /// Whether the run goes on. What the first rank finds counts for all. Collective.
    fn resumes(&self, world: &ProcessGroup) -> Result<bool> {
        if self.resume || !(self.auto_resume || self.resume_restarted) {
            return Ok(self.resume);
        }
        let is_of_launch = || {
            let launch = self.launch.as_ref().filter(|_| self.resume_restarted);
            launch.map_or(Ok(false), |launch| launch_mark::bears(&self.out, launch))
        };
        let goes_on =
            world.rank() == 0 && (self.auto_resume || is_of_launch()?) && !self.checkpoints.steps()?.is_empty();
        Ok(world.all_reduce_values(&[f64::from(u8::from(goes_on))], ReduceOp::Max)?[0] > 0.0)
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
        if self.resumes(&world)? {
            let now = run.saved().clone();
            let engine = run.engine_mut();
            let read = |checkpoint: &Arc<Checkpoint>| engine.restore(checkpoint);
            let saved = self.checkpoints.load(self.which, &world, &now, read)?;
            run.resume(saved);
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
