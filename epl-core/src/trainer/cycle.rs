//! The loop: load, `before_step`, step, `after_step`; then what the hooks asked for.

use std::time::Instant;

use super::hook::Hook;
use super::record::{Evaluation, StepRecord};
use super::run::Run;
use super::settings::TrainerConfig;
use crate::data::{BatchShard, Loader, TrainData};
use crate::error::Result;
use crate::evaluate::{Values, join};
use crate::launch::{of_run, step_began};
use crate::model::segment::Model;
use crate::trainer::learning_rate::LearningRate;

/// A run with all that takes part in it.
pub(super) struct Cycle<'r, 'a, M: Model> {
    pub run: Run<M>,
    pub hooks: &'r mut [Box<dyn Hook<M> + 'a>],
    pub config: &'r TrainerConfig,
    pub schedule: &'r dyn LearningRate,
}

impl<M: Model> Cycle<'_, '_, M> {
    /// Runs all steps that are left. Collective.
    pub(super) fn all<I: 'static>(mut self, data: &TrainData<I, M::Batch>) -> Result<Run<M>>
    where
        M::Batch: 'static,
    {
        self.tell(|hook, run| hook.before_run(run))?;
        self.serve()?;
        of_run(self.run.context().world(), self.run.step(), self.run.steps(), &self.config.tokens);
        if !self.run.is_over() {
            let share = BatchShard::of(self.run.context(), self.config.micro_batches)?;
            let (device, ahead) = (self.run.engine().device(), self.config.ahead()?);
            let mut loader = Loader::start_ahead(data, share, device, self.run.position(), ahead)?;
            while !self.run.is_over() {
                self.step(&mut loader)?;
            }
        }
        // Of all hooks, whatever one of them says: another has a checkpoint to finish.
        let mut ended = Ok(());
        self.tell(|hook, run| {
            ended = std::mem::replace(&mut ended, Ok(())).and(hook.after_run(run));
            Ok(())
        })?;
        let told = self.tell_warnings();
        ended.and(told).map(|()| self.run)
    }

    fn step(&mut self, loader: &mut Loader<M::Batch>) -> Result<()>
    where
        M::Batch: 'static,
    {
        self.tell(|hook, run| hook.before_step(run))?;
        let start = Instant::now();
        step_began(self.run.context().world(), start);
        let data = loader.next_step()?;
        let rate = self.schedule.at(self.run.step());
        let rates = self.schedule.of_parameters(self.run.step(), self.run.engine().plan().records());
        self.run.engine_mut().set_rates(rates.as_deref())?;
        let report = self.run.engine_mut().step(data.micro_batches, rate)?;
        match report.skipped {
            true => self.run.skip(data.position),
            false => self.run.advance(data.position),
        }
        let record = StepRecord {
            step: self.run.step(),
            rate,
            samples: data.samples,
            position: data.position,
            tokens: report.tokens(&self.config.tokens),
            time: start.elapsed(),
            data_wait: data.waited,
            data_ahead: data.ahead,
            bubble: self.run.engine().bubble(),
            skipped: self.run.engine().loss_scaler().map(|scaler| scaler.state().skipped),
            report,
        };
        if record.report.skipped {
            self.tell(|hook, run| hook.after_skipped_step(run, &record))?;
            // Nothing falls due, as the step is still to be made; unless the data has ended with it.
            if !self.run.is_over() {
                return Ok(());
            }
        } else {
            self.tell(|hook, run| hook.after_step(run, &record))?;
            self.run.set_last(record);
        }
        self.tell(|hook, run| hook.between_steps(run))?;
        self.serve()
    }

    /// Does what hooks asked for, until they ask for nothing more. A model is saved before it is evaluated, so that
    /// an evaluation that fails loses nothing.
    fn serve(&mut self) -> Result<()> {
        loop {
            self.tell_warnings()?;
            if let Some(failed) = self.run.take_failed_save() {
                self.tell(|hook, run| hook.after_failed_save(run, &failed))?;
            } else if self.run.take_save() {
                self.save()?;
            } else if self.run.take_evaluation() {
                self.evaluate()?;
            } else {
                return Ok(());
            }
        }
    }

    fn tell_warnings(&mut self) -> Result<()> {
        while let Some(warning) = self.run.take_warning() {
            self.tell(|hook, run| hook.after_warning(run, &warning))?;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<()> {
        self.tell(|hook, run| hook.before_save(run))?;
        self.run.was_saved();
        self.tell(|hook, run| hook.save(run))?;
        self.tell(|hook, run| hook.after_save(run))
    }

    fn evaluate(&mut self) -> Result<()> {
        self.tell(|hook, run| hook.before_evaluation(run))?;
        let start = Instant::now();
        let mut values = Values::new();
        self.tell(|hook, run| join(&mut values, hook.evaluate(run)?))?;
        let evaluation = Evaluation { step: self.run.step(), values, time: start.elapsed() };
        self.tell(|hook, run| hook.after_evaluation(run, &evaluation))?;
        self.run.set_evaluation(evaluation);
        Ok(())
    }

    /// Calls a method of all hooks.
    fn tell(&mut self, mut method: impl FnMut(&mut dyn Hook<M>, &mut Run<M>) -> Result<()>) -> Result<()> {
        let run = &mut self.run;
        self.hooks.iter_mut().try_for_each(|hook| method(hook.as_mut(), run))
    }
}
