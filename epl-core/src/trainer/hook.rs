//! What takes part in a run beside its steps.

use super::checkpoint::FailedSave;
use super::record::{Evaluation, StepRecord};
use super::run::Run;
use crate::error::Result;
use crate::evaluate::Values;
use crate::model::segment::Model;

/// Takes part in a run: watches it, measures, saves, ends it.
///
/// All that a trainer does beside the steps is done by hooks, with what every hook may use. Add your own with
/// [`Trainer::with_hook`](super::Trainer::with_hook); every method may be left out. A hook that ends a run whose loss
/// no longer falls:
///
/// ```
/// use epl_core::trainer::{Evaluation, Hook, Run};
/// use epl_core::{Result, Model};
///
/// struct Patience { best: f64, left: usize }
///
/// impl<M: Model> Hook<M> for Patience {
///     fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
///         let loss = evaluation.get("valid_loss").unwrap_or(f64::INFINITY);
///         self.left = if loss < self.best { 3 } else { self.left.saturating_sub(1) };
///         self.best = self.best.min(loss);
///         if self.left == 0 {
///             run.request_end();
///         }
///         Ok(())
///     }
/// }
/// ```
///
/// Every method is called on all hooks before the next method is called on any: first the trainer's own, in the order
/// of [`hooks`](super::hooks), then the user's in the order in which they were added. An error ends the run on all
/// ranks. A method that says "collective" may use collectives, if the hook is there on every rank: then all ranks are
/// in the same method of the same hook. All of them may; a hook that is there on some ranks only, such as one that
/// writes on the first rank, must not.
pub trait Hook<M: Model> {
    /// Before the first step. The run may have been resumed.
    fn before_run(&mut self, _run: &mut Run<M>) -> Result<()> {
        Ok(())
    }

    /// Before a step; `run` tells how many are done.
    fn before_step(&mut self, _run: &mut Run<M>) -> Result<()> {
        Ok(())
    }

    /// After a step. What is asked for here, such as the end of the run, holds after this step.
    fn after_step(&mut self, _run: &mut Run<M>, _record: &StepRecord) -> Result<()> {
        Ok(())
    }

    /// After a step that was skipped because a gradient was not finite under mixed precision: nothing was updated, and
    /// `record` tells the number of the last step that was made. The next one follows at once.
    fn after_skipped_step(&mut self, _run: &mut Run<M>, _record: &StepRecord) -> Result<()> {
        Ok(())
    }

    /// After the last hook has seen the step: the time to ask for what falls due. The first of the trainer's hooks has
    /// agreed with all ranks whether this was the last step.
    fn between_steps(&mut self, _run: &mut Run<M>) -> Result<()> {
        Ok(())
    }

    /// Before a checkpoint is written: what a file must hold that is not to end before the checkpoint.
    fn before_save(&mut self, _run: &mut Run<M>) -> Result<()> {
        Ok(())
    }

    /// Writes a checkpoint, or starts to.
    fn save(&mut self, _run: &mut Run<M>) -> Result<()> {
        Ok(())
    }

    /// After a checkpoint was started; it is whole at the latest when the next one starts, or the run ends.
    fn after_save(&mut self, _run: &mut Run<M>) -> Result<()> {
        Ok(())
    }

    /// After something went wrong that a run can go on with, such as a log that cannot be written. On the ranks where it
    /// did.
    fn after_warning(&mut self, _run: &mut Run<M>, _warning: &str) -> Result<()> {
        Ok(())
    }

    /// After a checkpoint could not be written, such as on a full disk. The one before stands, and training goes on.
    fn after_failed_save(&mut self, _run: &mut Run<M>, _failed: &FailedSave) -> Result<()> {
        Ok(())
    }

    /// Before an evaluation.
    fn before_evaluation(&mut self, _run: &mut Run<M>) -> Result<()> {
        Ok(())
    }

    /// Measures something: named values, which go into the evaluation. Those of the first rank of the world count.
    fn evaluate(&mut self, _run: &mut Run<M>) -> Result<Values> {
        Ok(Values::new())
    }

    /// After an evaluation, with what all hooks have measured.
    fn after_evaluation(&mut self, _run: &mut Run<M>, _evaluation: &Evaluation) -> Result<()> {
        Ok(())
    }

    /// After the last step, checkpoint and evaluation. Not called when the run fails.
    fn after_run(&mut self, _run: &mut Run<M>) -> Result<()> {
        Ok(())
    }
}
