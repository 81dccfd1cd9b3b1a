//! Saves every so many steps.

use crate::error::Result;
use crate::segment::Segmented;
use crate::trainer::checkpoint::Checkpoints;
use crate::trainer::hook::Hook;
use crate::trainer::run::Run;

/// Writes a checkpoint every so many steps, at the end, and when a hook asks for one. For every rank.
#[derive(Clone, Debug)]
pub struct SaveEvery {
    every: Option<u64>,
    checkpoints: Checkpoints,
}

impl SaveEvery {
    /// Saves every `every` steps and at the end; without a number, at the end only.
    pub fn new(every: Option<u64>, checkpoints: Checkpoints) -> Self {
        Self { every, checkpoints }
    }
}

impl<M: Segmented> Hook<M> for SaveEvery {
    fn between_steps(&mut self, run: &mut Run<M>) -> Result<()> {
        if run.is_due(self.every) {
            run.request_save();
        }
        Ok(())
    }

    fn save(&mut self, run: &mut Run<M>) -> Result<()> {
        let engine = run.engine();
        self.checkpoints.save(engine.context().world(), run.saved(), |folder| engine.save_rank(folder))
    }
}
