//! Opens the folder of a run, new or to be resumed.

use std::path::PathBuf;
use std::sync::Arc;

use epl_comm::{ProcessGroup, ReduceOp};

use crate::checkpoint::Checkpoint;
use crate::durable::{FileSystem, create_folder};
use crate::error::{Error, Result};
use crate::segment::Segmented;
use crate::trainer::checkpoint::{Checkpoints, Which};
use crate::trainer::hook::Hook;
use crate::trainer::run::Run;
use crate::trainer::settings::TrainerConfig;

/// Makes the folder, or resumes the run from its latest checkpoint. For every rank.
#[derive(Clone, Debug)]
pub struct OpenFolder {
    out: PathBuf,
    checkpoints: Checkpoints,
    resume: bool,
    resume_if_saved: bool,
    which: Which,
    replace: bool,
}

impl OpenFolder {
    /// Opens `out`, whose checkpoints are `checkpoints`: to resume it, or to replace it, as the settings say.
    pub fn new(out: impl Into<PathBuf>, checkpoints: Checkpoints, config: &TrainerConfig) -> Self {
        let which = config.resume_step.map_or(Which::Latest, Which::Step);
        let TrainerConfig { resume, resume_if_saved, replace, .. } = *config;
        Self { out: out.into(), checkpoints, resume, resume_if_saved, which, replace }
    }

    /// Whether the run goes on. What the first rank finds counts for all. Collective.
    fn resumes(&self, world: &ProcessGroup) -> Result<bool> {
        if self.resume || !self.resume_if_saved {
            return Ok(self.resume);
        }
        let is_saved = world.rank() == 0 && !self.checkpoints.steps()?.is_empty();
        Ok(world.all_reduce_values(&[f64::from(u8::from(is_saved))], ReduceOp::Max)?[0] > 0.0)
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
                    "the folder holds a run that was saved after step {step}; resume it, choose another folder, or \
                     allow it to be replaced"
                ),
            )),
        }
    }
}

impl<M: Segmented> Hook<M> for OpenFolder {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        let world = run.context().world().clone();
        if self.resumes(&world)? {
            let now = run.saved().clone();
            let engine = run.engine_mut();
            let read = |checkpoint: &Arc<Checkpoint>| engine.restore(checkpoint);
            let saved = self.checkpoints.load(self.which, &world, &now, read)?;
            run.resume(saved);
            return Ok(());
        }
        if run.is_first_rank() {
            self.make()?;
        }
        // Nobody writes before the folder is there.
        Ok(world.barrier()?)
    }
}
