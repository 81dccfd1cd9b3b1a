//! Checks that replicas hold the same bits.

use crate::error::Result;
use crate::model::segment::Model;
use crate::trainer::hook::Hook;
use crate::trainer::run::Run;

/// Checks every so many steps, at the end, and before a checkpoint, so that replicas that have drifted apart are not
/// saved. For every rank.
#[derive(Clone, Debug)]
pub struct CheckReplicas {
    every: u64,
    checked_at: Option<u64>,
}

impl CheckReplicas {
    /// Checks every `every` steps.
    pub fn every(every: u64) -> Self {
        Self { every, checked_at: None }
    }

    fn check<M: Model>(&mut self, run: &Run<M>) -> Result<()> {
        if self.checked_at == Some(run.step()) {
            return Ok(());
        }
        self.checked_at = Some(run.step());
        run.engine().check_replicas()
    }
}

impl<M: Model> Hook<M> for CheckReplicas {
    fn between_steps(&mut self, run: &mut Run<M>) -> Result<()> {
        if run.is_due(Some(self.every)) { self.check(run) } else { Ok(()) }
    }

    fn before_save(&mut self, run: &mut Run<M>) -> Result<()> {
        self.check(run)
    }
}
