//! Keeps the best checkpoint.

use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::trainer::checkpoint::Checkpoints;
use crate::trainer::hook::Hook;
use crate::trainer::record::Evaluation;
use crate::trainer::run::Run;
use crate::trainer::settings::Best;

/// Marks the checkpoint of the best evaluation; where there is none of that step, asks for one. For every rank.
#[derive(Clone, Debug)]
pub struct KeepBest {
    best: Best,
    checkpoints: Checkpoints,
    /// The best value so far. Used on the first rank of the world.
    value: Option<f64>,
    /// Found better, and not saved yet.
    unsaved: Option<Evaluation>,
}

impl KeepBest {
    /// Keeps the best of these checkpoints.
    pub fn new(best: Best, checkpoints: Checkpoints) -> Self {
        Self { best, checkpoints, value: None, unsaved: None }
    }

    /// Whether an evaluation found the best model so far. In the eyes of one rank.
    fn improves(&self, evaluation: &Evaluation) -> Result<bool> {
        let Some(value) = evaluation.get(&self.best.metric) else {
            let names: Vec<&str> = evaluation.values.iter().map(|(name, _)| name.as_str()).collect();
            return Err(Error::invalid(format!(
                "the best checkpoint is to be kept by `{}`, and the evaluations returned {names:?}; name one of these",
                self.best.metric
            )));
        };
        Ok(self.best.improves(value, self.value))
    }

    /// Marks the checkpoint of an evaluation, once it is whole.
    fn mark<M: Model>(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        let failed = self.checkpoints.settle(run.context().world())?;
        run.note_failed_save(failed);
        if run.saved_at() == Some(evaluation.step) {
            self.value = evaluation.get(&self.best.metric);
            let marked = self.checkpoints.mark_best(run.context().world(), &self.best, evaluation)?;
            run.forgive(marked);
        }
        Ok(())
    }
}

impl<M: Model> Hook<M> for KeepBest {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        // A new run with a folder of its own has no best yet.
        self.value = if run.step() > 0 { self.checkpoints.best_value(&self.best, run.step())? } else { None };
        // All have read it.
        Ok(run.context().world().barrier()?)
    }

    fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        let better = run.is_first_rank() && self.improves(evaluation)?;
        if !run.any(better)? {
            return Ok(());
        }
        if run.saved_at() == Some(evaluation.step) {
            return self.mark(run, evaluation);
        }
        self.unsaved = Some(evaluation.clone());
        run.request_save();
        Ok(())
    }

    fn after_save(&mut self, run: &mut Run<M>) -> Result<()> {
        match self.unsaved.take() {
            Some(evaluation) => self.mark(run, &evaluation),
            None => Ok(()),
        }
    }
}
