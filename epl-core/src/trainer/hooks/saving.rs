//! Saves every so many steps.

use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::trainer::checkpoint::Checkpoints;
use crate::trainer::hook::Hook;
use crate::trainer::run::Run;

/// Writes a checkpoint every so many steps, at the end, and when a hook asks for one: copies what it holds aside, and writes
/// while training goes on. For every rank.
///
/// One that cannot be written is told, and training goes on, but for that at the end.
#[derive(Clone, Debug)]
pub struct SaveEvery {
    every: Option<u64>,
    checkpoints: Checkpoints,
    /// Whether each is whole before training goes on.
    waits: bool,
}

impl SaveEvery {
    /// Saves every `every` steps and at the end; without a number, at the end only.
    pub fn new(every: Option<u64>, checkpoints: Checkpoints) -> Self {
        Self { every, checkpoints, waits: false }
    }

    /// Waits until each is written: it takes as long, and no second copy of the state.
    #[must_use]
    pub fn waiting(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }
}

impl<M: Model> Hook<M> for SaveEvery {
    fn between_steps(&mut self, run: &mut Run<M>) -> Result<()> {
        let failed = self.checkpoints.look(run.context().world())?;
        run.note_failed_save(failed);
        run.forgive_all(self.checkpoints.take_warnings());
        if run.is_due(self.every) && run.saved_at() != Some(run.step()) {
            run.request_save();
        }
        Ok(())
    }

    fn save(&mut self, run: &mut Run<M>) -> Result<()> {
        let world = run.context().world().clone();
        // First, so that there are never two snapshots.
        let before = self.checkpoints.settle(&world)?;
        run.note_failed_save(before);
        let failed = self.checkpoints.start(&world, run.saved(), run.engine().snapshot()?)?;
        run.note_failed_save(failed);
        if self.waits {
            let failed = self.checkpoints.settle(&world)?;
            run.note_failed_save(failed);
        }
        Ok(())
    }

    fn after_run(&mut self, run: &mut Run<M>) -> Result<()> {
        let failed = self.checkpoints.settle(run.context().world())?;
        run.note_failed_save(failed);
        run.forgive_all(self.checkpoints.take_warnings());
        match run.failed_save() {
            Some(failed) if failed.step == run.step() && run.saved_at() != Some(run.step()) => Err(Error::invalid(
                format!("the checkpoint of the last step, {}, could not be written: {}", failed.step, failed.reason),
            )),
            _ => Ok(()),
        }
    }
}
