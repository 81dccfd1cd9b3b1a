//! Evaluates every so many steps: the loss on other data, and measures of one's own.

use std::marker::PhantomData;

use crate::data::{BatchShard, EvaluationLoader, ValidData};
use crate::engine::Engine;
use crate::error::Result;
use crate::evaluate::{Evaluator, Values};
use crate::model::segment::Model;
use crate::trainer::checkpoint::Checkpoints;
use crate::trainer::hook::Hook;
use crate::trainer::record::Evaluation;
use crate::trainer::run::Run;

/// Asks for an evaluation every so many steps and at the end, and, where a run that died in one is resumed, at the
/// beginning. For every rank.
#[derive(Clone, Debug)]
pub struct EvaluateEvery {
    every: Option<u64>,
    checkpoints: Option<Checkpoints>,
}

impl EvaluateEvery {
    /// Evaluates every `every` steps and at the end; without a number, at the end only.
    pub fn new(every: Option<u64>) -> Self {
        Self { every, checkpoints: None }
    }

    /// Notes in each checkpoint what its evaluation found: so a resumed run knows whether that is still to be done.
    #[must_use]
    pub fn with_checkpoints(mut self, checkpoints: Option<Checkpoints>) -> Self {
        self.checkpoints = checkpoints;
        self
    }

    /// Notes the evaluation of this step in the checkpoint of this step, once there are both.
    fn note<M: Model>(&self, run: &mut Run<M>, evaluation: Option<&Evaluation>) -> Result<()> {
        let (Some(checkpoints), Some(evaluation)) = (&self.checkpoints, evaluation) else { return Ok(()) };
        let failed = checkpoints.settle(run.context().world())?;
        run.note_failed_save(failed);
        if run.is_first_rank() && run.saved_at() == Some(evaluation.step) {
            run.forgive(checkpoints.note_evaluation(evaluation));
        }
        Ok(())
    }
}

impl<M: Model> Hook<M> for EvaluateEvery {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        let Some(checkpoints) = self.checkpoints.as_ref().filter(|_| run.step() > 0) else {
            return Ok(());
        };
        // A rank that cannot see the note yet goes along with the first one.
        match checkpoints.common_evaluation(run.context().world(), run.step())? {
            Some(evaluation) => run.set_evaluation(evaluation),
            None if run.is_due(self.every) => run.request_evaluation(),
            None => {}
        }
        Ok(())
    }

    fn between_steps(&mut self, run: &mut Run<M>) -> Result<()> {
        if run.is_due(self.every) && !run.is_interrupted() {
            run.request_evaluation();
        }
        Ok(())
    }

    fn after_save(&mut self, run: &mut Run<M>) -> Result<()> {
        let evaluation = run.evaluation().filter(|evaluation| evaluation.step == run.step()).cloned();
        self.note(run, evaluation.as_ref())
    }

    fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        let is_saved = run.saved_at() == Some(run.step());
        self.note(run, Some(evaluation).filter(|_| is_saved))
    }
}

/// Measures the loss on other data, as `valid_loss`. For every rank.
pub struct ValidLoss<I, B>(ValidData<I, B>);

impl<I, B> ValidLoss<I, B> {
    /// The loss on this data.
    pub fn new(data: ValidData<I, B>) -> Self {
        Self(data)
    }
}

impl<M, I> Hook<M> for ValidLoss<I, M::Batch>
where
    M: Model,
    M::Batch: 'static,
    I: 'static,
{
    fn evaluate(&mut self, run: &mut Run<M>) -> Result<Values> {
        let engine = run.engine();
        let share = BatchShard::of(engine.context(), 1)?;
        // As the model: evaluation has no graph.
        let device = engine.device().clone().without_autodiff();
        let report = engine.evaluate(EvaluationLoader::start(&self.0, share, &device)?)?;
        Ok(vec![("valid_loss".to_string(), report.loss)])
    }
}

/// Measures in a way of one's own: a function of the engine. For every rank.
pub struct EvaluateWith<M, F>(F, PhantomData<fn(&M)>);

impl<M, F: FnMut(&Engine<M>) -> Result<Values>> EvaluateWith<M, F>
where
    M: Model,
{
    /// Measures what `f` returns.
    pub fn new(f: F) -> Self {
        Self(f, PhantomData)
    }
}

impl<M: Model, F: FnMut(&Engine<M>) -> Result<Values>> Hook<M> for EvaluateWith<M, F> {
    fn evaluate(&mut self, run: &mut Run<M>) -> Result<Values> {
        (self.0)(run.engine())
    }
}

impl<'a, M: Model + 'a, O> Hook<M> for Evaluator<'a, M, O> {
    fn evaluate(&mut self, run: &mut Run<M>) -> Result<Values> {
        self.measure(run.engine())
    }
}
