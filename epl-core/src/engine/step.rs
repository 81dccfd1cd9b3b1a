//! A step: the reduced gradients, then the update.

use std::collections::BTreeMap;
use std::time::Instant;

use burn::tensor::TensorData;
use epl_comm::{OperationPhase, TraceWatch, timed};

use super::accumulated::Accumulated;
use super::batches::Given;
use super::gather::GatherSource;
use super::gradients::GradientStore;
use super::micro_batch::MicroBatch;
use super::norm;
use super::rank::Engine;
use super::report::StepReport;
use super::run::StepRun;
use crate::error::{Error, Result};
use crate::launch::stepped;
use crate::model::segment::Model;
use crate::offload::{Update, is_host};
use crate::simulate::StepTime;

impl<M: Model> Engine<M> {
    /// Makes one step over the micro-batches of this replica. Collective.
    ///
    /// Layers that keep running statistics update them in forward, also in a step whose gradients are then not finite.
    ///
    /// # Errors
    ///
    /// When a collective or a layer fails, ranks of one replica run other samples, the rate is negative or not finite, or the
    /// norm of the gradients is not finite; the parameters are then as before, and in all but the last case running statistics.
    pub fn step(&mut self, micro_batches: Vec<MicroBatch<M::Batch>>, rate: f64) -> Result<StepReport> {
        self.step_given(micro_batches, Given::default(), rate)
    }

    /// A [`step`](Self::step) over what was `given`.
    pub(crate) fn step_given(
        &mut self,
        micro_batches: Vec<MicroBatch<M::Batch>>,
        given: Given,
        rate: f64,
    ) -> Result<StepReport> {
        self.check_rate(rate)?;
        let accumulated = self.accumulate_given(micro_batches, given)?;
        self.apply(accumulated, rate)
    }

    /// Forward and backward of every micro-batch, and the reduction of the gradients: the first half of a
    /// [`step`](Self::step), which [`apply`](Self::apply) ends. What is dropped instead updates nothing but the running
    /// statistics of layers that keep some. Collective.
    ///
    /// ```
    /// # use epl_core::{Engine, MicroBatch, Model, Result};
    /// # fn example<M: Model>(engine: &mut Engine<M>, own: Vec<MicroBatch<M::Batch>>) -> Result<()> {
    /// let accumulated = engine.accumulate(own)?;
    /// if accumulated.report().grad_norm < 100.0 { // the same on every rank
    ///     engine.apply(accumulated, 0.01)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When a collective fails, or ranks of one replica run other samples.
    pub fn accumulate(&mut self, micro_batches: Vec<MicroBatch<M::Batch>>) -> Result<Accumulated> {
        self.accumulate_given(micro_batches, Given::default())
    }

    fn accumulate_given(&mut self, micro_batches: Vec<MicroBatch<M::Batch>>, given: Given) -> Result<Accumulated> {
        self.look_at_segments(&micro_batches)?;
        if self.plan.settings.check_recomputation && self.state.steps == 0 {
            self.check_recomputation(&micro_batches)?;
        }
        let watch = self.diagnostics.trace_step(&self.context);
        Ok(Accumulated { watch, ..self.accumulated(&micro_batches, given)? })
    }

    /// Updates the parameters: the second half of a [`step`](Self::step). Collective.
    ///
    /// # Errors
    ///
    /// When a collective fails, the rate is negative or not finite, or the norm of the gradients is not finite; the parameters
    /// are then as before. Under mixed precision such a step is skipped, on all ranks alike, and too many of them are an error.
    pub fn apply(&mut self, accumulated: Accumulated, rate: f64) -> Result<StepReport> {
        self.check_rate(rate)?;
        let Accumulated { mut store, mut report, without, not_finite, bubble, number, loss_scale, begun, watch } =
            accumulated;
        if self.state.away.as_ref().is_some_and(|away| away.borrow().number() != number) {
            return Err(Error::invalid(
                "other gradients were accumulated after these, and took their place: there is room for one step's away from \
                 the device; apply each before the next is accumulated",
            ));
        }
        if let Some(scaler) = &mut self.state.scaler {
            report.loss_scale = Some(loss_scale);
            report.skipped = !report.grad_norm.is_finite();
            let goes_on = scaler.after(!report.skipped);
            if report.skipped {
                return goes_on.map(|()| report).map_err(|error| self.compressed_too(error));
            }
        }
        if !report.grad_norm.is_finite() {
            return Err(self.not_finite(&report, store, &not_finite)?);
        }
        let mut factor = 1.0 / loss_scale;
        factor *= self.plan.global_clip_norm().map_or(1.0, |limit| norm::clip_factor(report.grad_norm, limit));
        let (setup, state) = self.parts();
        // What nobody has a gradient of is left as it is, and keeps no state, as by Burn's optimizer: no decay, no momentum.
        without.iter().for_each(|number| drop(store.remove(setup.plan.params.records[*number].id)));
        match state.steps {
            0 => state.untouched.clone_from(&without),
            _ => state.untouched.retain(|number| without.contains(number)),
        }
        if let Some(away) = &state.away {
            away.borrow_mut().leave_out(without);
        }
        timed("update", OperationPhase::Update, || state.update(setup, store, Update { rate, factor }))?;
        self.state.steps += 1;
        self.count_memory();
        let rank = self.context.world().global(self.context.world().rank());
        let measured = |watch: TraceWatch| StepTime::measured(&watch.events(), rank, (begun, Instant::now()));
        self.diagnostics.step_time = watch.map(measured);
        self.diagnostics.bubble = bubble;
        // A step that is skipped loads no kernel of the update. Stages may load some between a send and a receive at any time.
        if self.plan.stages.count() == 1 && !self.is_trial {
            self.context.world().warmed_up();
        }
        if !self.is_trial {
            stepped(self.context.world(), self.state.steps, |term| report.tokens(term), begun);
        }
        Ok(report)
    }

    /// Gives the parameters rates of their own in the steps that follow, by the numbers of their records in the plan, in the
    /// place of the rate that a step is given; none: all have that. The rate factor of a parameter group multiplies either.
    /// A [`Trainer`](crate::Trainer) sets them in each step, by its schedule.
    ///
    /// # Errors
    ///
    /// When they are not one for each parameter, or one is negative or not finite.
    pub fn set_rates(&mut self, rates: Option<&[f64]>) -> Result<()> {
        let count = self.plan.records().len();
        if let Some(given) = rates {
            given.iter().try_for_each(|rate| self.check_rate(*rate))?;
            if given.len() != count {
                return Err(Error::invalid(format!(
                    "{} learning rates, and the model has {count} parameters; give one for each",
                    given.len()
                )));
            }
        }
        let (setup, state) = self.parts();
        state.optimizer.set_rates(setup.plan.records(), rates);
        if let Some(one_pass) = &mut state.one_pass {
            one_pass.set_rates(rates);
        }
        Ok(())
    }

    /// A rate with which parameters would be lost, or follow the gradient upwards.
    fn check_rate(&self, rate: f64) -> Result<()> {
        match rate.is_finite() && rate >= 0.0 {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "learning rate {rate} at step {}; give a finite number of at least 0",
                self.next_step()
            ))),
        }
    }

    /// The number of the step that is made, as the trainer shows it: from 1.
    pub(super) fn next_step(&self) -> u64 {
        self.state.steps + 1
    }

    /// The fraction of the last step's forwards and backwards in which stages waited for each other, as the mean over
    /// stages and replicas; none before the first step, and with one stage. The plan's is [`Plan::expected_bubble`](crate::Plan::expected_bubble).
    /// Waiting for the other slices of a layer, or for experts, is no waiting for a stage.
    pub fn bubble(&self) -> Option<f64> {
        self.diagnostics.bubble
    }

    /// Has it measured where the time of the next step goes, by what this rank records of it: [`step_time`](Self::step_time). A
    /// rank may do so alone; nothing is kept for a trace by that.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, optim::SgdConfig, tensor::Tensor};
    /// use epl_core::{Config, Engine, WithLoss, launch};
    ///
    /// launch(&Config::new().with("cluster.ranks", 2)?, |epl| {
    ///     let loss = |net: &burn::nn::Linear, rows: &Tensor<2>| net.forward(rows.clone()).powi_scalar(2).mean();
    ///     let mut engine = Engine::build(&epl, |at| WithLoss::new(LinearConfig::new(8, 1).init(at), loss), &SgdConfig::new())?;
    ///     let batch = Tensor::<2>::ones([16, 8], epl.place().device());
    ///     engine.measure_step();
    ///     engine.train_batch(&batch, 0.01)?;
    ///     let time = engine.step_time().expect("it was to be measured");
    ///     println!("{time}"); // 0.4 ms: compute 0.2, gradients 0.1, …
    ///     assert!(time.compute > 0.0 && time.stages == 0.0);
    ///     Ok(())
    /// })?;
    /// # Ok::<_, epl_core::Error>(())
    /// ```
    pub fn measure_step(&mut self) {
        // A rank whose device works on behind it would measure how long it takes to ask for things.
        self.diagnostics.measures = is_host(&self.device);
    }

    /// Where the time of the last step went, where that was to be [measured](Self::measure_step): from the begin of
    /// [`accumulate`](Self::accumulate) to the end of [`apply`](Self::apply), with what the program does between the two. None on a
    /// device that has memory of its own, as it works on behind the rank, of a step that was skipped, and where
    /// [`Epl::new`](crate::Epl::new) was given no trace.
    pub fn step_time(&self) -> Option<&StepTime> {
        self.diagnostics.step_time.as_ref()
    }

    /// The reduced gradients of a step, whole, by parameter. Collective. They are not clipped, but where each replica clips
    /// its own before they are reduced (`communication.clip_after_allreduce = false`).
    ///
    /// Nothing is updated but the running statistics of layers that keep some.
    pub fn gradients(
        &self,
        micro_batches: Vec<MicroBatch<M::Batch>>,
    ) -> Result<(StepReport, BTreeMap<String, TensorData>)> {
        let Accumulated { store, report, .. } = self.accumulated(&micro_batches, Given::default())?;
        let mut store = self.whole_store(store)?;
        store.scale_by(1.0 / self.state.loss_scale());
        Ok((report, self.gather(&GatherSource::Gradients(&store), true)?))
    }

    /// The gradients, also those that lie away from the device.
    pub(super) fn whole_store(&self, store: GradientStore) -> Result<GradientStore> {
        match &self.state.away {
            Some(away) => away.borrow().to_store(&self.plan.params, &self.device.clone().without_autodiff()),
            None => Ok(store),
        }
    }

    fn accumulated(&self, micro_batches: &[MicroBatch<M::Batch>], given: Given) -> Result<Accumulated> {
        self.with_statistics(|statistics| {
            let _outputs = self.context.open_outputs();
            StepRun::new(self, &self.plan.recompute, micro_batches, given, statistics)?.all()
        })
    }
}
