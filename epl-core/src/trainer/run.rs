//! The loop.

use std::time::Instant;

use super::checkpoint::{Checkpoints, Saved};
use super::evaluate::{self, Evaluator};
use super::observer::{Begin, Evaluation, Observer, StepRecord, Summary};
use super::settings::TrainerConfig;
use super::stop::{self, Stop};
use crate::data::{Loader, Share, TrainData};
use crate::engine::{Engine, StepReport};
use crate::error::{Error, Result};
use crate::schedule::LearningRate;
use crate::segment::Segmented;

/// A run that has been opened: where it stands, and all that takes part in it.
pub(super) struct Run<'r, 'a, M: Segmented> {
    pub engine: &'r mut Engine<M>,
    pub config: &'r TrainerConfig,
    pub schedule: &'r LearningRate,
    pub evaluators: &'r mut [Evaluator<'a, M>],
    pub observers: &'r mut [Box<dyn Observer + 'a>],
    pub stop: &'r Stop,
    pub checkpoints: Option<&'r Checkpoints>,
    /// Step and position move; the rest is how the run is set up.
    pub saved: Saved,
    /// What its configuration says otherwise than that of the checkpoint it resumes from.
    pub changes: Vec<String>,
    /// The best value so far of the metric by which a checkpoint is kept. Used on the first rank of the world.
    pub best: Option<f64>,
}

impl<M: Segmented> Run<'_, '_, M> {
    /// Runs all steps that are left. Collective.
    pub(super) fn all<I: 'static>(mut self, data: &TrainData<I, M::Batch>) -> Result<Summary>
    where
        M::Batch: 'static,
    {
        let (steps, done) = (self.config.steps, self.saved.step);
        let begin = Begin { steps, done, changes: std::mem::take(&mut self.changes) };
        self.observe(|observer| observer.begin(&begin))?;
        let mut summary =
            Summary { steps: done, position: self.saved.position, stopped: false, last: None, evaluation: None };
        if done < steps {
            let (replica, replicas) = evaluate::replica(self.engine);
            let share = Share::new(replica, replicas, self.config.micro_batches)?;
            let mut loader = Loader::start(data, share, self.engine.device(), self.saved.position)?;
            while summary.steps < steps && !summary.stopped {
                let record = self.step(&mut loader)?;
                summary.stopped = stop::any(self.engine.context().world(), self.stop.is_requested())?;
                (summary.steps, summary.position) = (record.step, record.position);
                summary.last = Some(record);
                let last = summary.stopped || summary.steps >= steps;
                self.after_step(last, &mut summary)?;
            }
            summary.stopped &= summary.steps < steps;
        }
        self.observe(|observer| observer.end(&summary))?;
        Ok(summary)
    }

    fn step(&mut self, loader: &mut Loader<M::Batch>) -> Result<StepRecord>
    where
        M::Batch: 'static,
    {
        let number = self.saved.step + 1;
        self.observe(|observer| observer.before_step(number))?;
        let start = Instant::now();
        let data = loader.next_step()?;
        let rate = self.schedule.at(self.saved.step);
        let report = self.engine.step(data.micro_batches, rate)?;
        (self.saved.step, self.saved.position) = (number, data.position);
        let record = StepRecord {
            step: number,
            rate,
            samples: data.samples,
            position: data.position,
            tokens: self.tokens(&report),
            time: start.elapsed(),
            data_wait: data.waited,
            report,
        };
        self.observe(|observer| observer.after_step(&record))?;
        Ok(record)
    }

    /// How many tokens a step had: the weight of the term that counts them.
    fn tokens(&self, report: &StepReport) -> f64 {
        let named = report.weights.iter().find(|(name, _)| *name == self.config.tokens);
        named.or(report.weights.first()).map_or(0.0, |(_, weight)| *weight)
    }

    /// Checks, saves and evaluates, if it is due: checks first, so that replicas that have drifted apart are not
    /// saved; evaluates last, so that an evaluation that fails loses nothing.
    fn after_step(&mut self, last: bool, summary: &mut Summary) -> Result<()> {
        let step = self.saved.step;
        let saved = TrainerConfig::due(self.config.save_every, step, last);
        if self.config.check_replicas_every.is_some_and(|every| saved || step.is_multiple_of(every)) {
            self.engine.check_replicas()?;
        }
        if saved {
            self.save(None)?;
        }
        if !self.evaluators.is_empty() && TrainerConfig::due(self.config.eval_every, step, last) {
            let evaluation = self.evaluate()?;
            if self.is_better(&evaluation)? {
                if saved { self.mark_best(&evaluation)? } else { self.save(Some(&evaluation))? }
            }
            summary.evaluation = Some(evaluation);
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<Evaluation> {
        let step = self.saved.step;
        self.observe(|observer| observer.before_evaluation(step))?;
        let evaluation = evaluate::run(self.evaluators, self.engine)?;
        self.observe(|observer| observer.after_evaluation(&evaluation))?;
        Ok(evaluation)
    }

    /// Whether an evaluation found the best model so far, in the eyes of the first rank. Collective.
    fn is_better(&mut self, evaluation: &Evaluation) -> Result<bool> {
        let Some(best) = &self.config.keep_best else {
            return Ok(false);
        };
        let world = self.engine.context().world();
        let mut better = false;
        if world.rank() == 0 {
            let Some(value) = evaluation.get(&best.metric) else {
                let names: Vec<&str> = evaluation.values.iter().map(|(name, _)| name.as_str()).collect();
                return Err(Error::invalid(format!(
                    "the best checkpoint is to be kept by `{}`, and the evaluations returned {names:?}; name one of \
                     these",
                    best.metric
                )));
            };
            better = best.improves(value, self.best);
            if better {
                self.best = Some(value);
            }
        }
        stop::any(world, better)
    }

    /// Saves; with an evaluation, as the best checkpoint.
    fn save(&mut self, best: Option<&Evaluation>) -> Result<()> {
        let Some(checkpoints) = self.checkpoints else {
            return Ok(());
        };
        let step = self.saved.step;
        self.observe(|observer| observer.before_save(step))?;
        let best = self.config.keep_best.as_ref().zip(best);
        let world = self.engine.context().world();
        checkpoints.save(world, &self.saved, best, |folder| self.engine.save_rank(folder))
    }

    /// Marks the checkpoint of this step as the best.
    fn mark_best(&self, evaluation: &Evaluation) -> Result<()> {
        match (self.checkpoints, &self.config.keep_best) {
            (Some(checkpoints), Some(best)) => {
                checkpoints.mark_best(self.engine.context().world(), &self.saved, best, evaluation)
            }
            _ => Ok(()),
        }
    }

    fn observe(&mut self, mut tell: impl FnMut(&mut dyn Observer) -> Result<()>) -> Result<()> {
        self.observers.iter_mut().try_for_each(|observer| tell(observer.as_mut()))
    }
}
