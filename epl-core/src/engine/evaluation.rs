//! Passes without gradients over many micro-batches, through all stages: the loss, and what is measured.

use std::cell::RefCell;

use epl_comm::ReduceOp;

use super::batches::Given;
use super::forward::Forward;
use super::micro_batch::MicroBatch;
use super::norm::Squares;
use super::rank::{Engine, caught};
use super::report::{Counted, EvalReport, StepReport, TermSums};
use super::weights;
use crate::error::{Error, Result};
use crate::model::carry::Carry;
use crate::model::context::{Context, NanCauses};
use crate::model::loss::{Loss, TermWeights};
use crate::model::segment::{Model, ModelOutput};

impl<M: Model> Engine<M> {
    /// The loss without gradients, over at least one micro-batch, as many on every rank. Collective.
    ///
    /// Over pipeline stages some micro-batches are read ahead, so that a stage runs one while the next stage runs the one
    /// before.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use epl_core::{Engine, Model, Result, data::{BatchShard, micro_batches}};
    /// # fn example<M: Model<Batch = Tensor<2>>>(engine: &Engine<M>, rows: &Tensor<2>) -> Result<()> {
    /// // Rows that every rank has; of a data set `EvaluationLoader` makes such micro-batches.
    /// let own = micro_batches(rows, BatchShard::of(engine.context(), 1)?, 0)?;
    /// let report = engine.evaluate(own.into_iter().map(Ok))?;
    /// println!("{}", report.loss); // over all rows
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the ranks have different numbers of micro-batches, or none, ranks of one replica run other samples, a micro-batch
    /// could not be loaded, a term of the loss has no weight or is a mean over nothing, or is NaN where a layer says why.
    pub fn evaluate(
        &self,
        micro_batches: impl IntoIterator<Item = Result<MicroBatch<M::Batch>>>,
    ) -> Result<EvalReport> {
        let _outputs = self.context.open_outputs();
        let forward = Forward::new(self, "evaluate").in_half();
        let (told, mut given) = (RefCell::new(Losses::default()), Given::default());
        let begin = |window: &[MicroBatch<M::Batch>]| {
            given.add(window);
            told.borrow_mut().begin(forward.model(), window, &self.context)
        };
        let last_part = self.plan.stages.parts().last().map_or(0, |part| part.start);
        let segment = |model: &M, index: usize, carry: Option<M::Carry>, batch: &M::Batch| {
            if index == last_part {
                self.context.open_nan_causes();
            }
            self.plan.forward(&self.context, model, index, carry, batch)
        };
        let count = self.windows(&forward, micro_batches, begin, segment, |model, carry, micro_batch| {
            let loss = model.loss(carry, forward.batch(&micro_batch.batch).of_loss());
            told.borrow_mut().losses.push((loss, self.context.take_nan_causes()));
            Ok(())
        })?;
        let Losses { sums, weights, .. } = told.into_inner().settled(&self.context)?;
        if count == 0 {
            return Err(Error::invalid("an evaluation without a batch; its loss would be no number"));
        }
        let weights = weights::sum_over_replicas(weights, (count, None), &mut given, &self.context)?;
        let (report, _) = sums.reduce(Counted::default(), &weights, &given, &self.context)?;
        let StepReport { loss, terms, weights, outputs, .. } = report;
        Ok(EvalReport { loss, terms, weights, outputs })
    }

    /// Runs micro-batches forward through all stages, without autodiff, dropout off, as many on every rank; hands what
    /// leaves the last segment to `end`, on the ranks of the last stage, with the model as that segment sees it: what
    /// other segments use alone may be empty in it. Collective, and `end` may be, over the ranks of a stage.
    ///
    /// Parameters are gathered segment by segment, as in training, and stay in the type that they are stored in. A
    /// stand-in is handed out as well: what `end` runs with it takes part in the collectives, and must count for nothing.
    ///
    /// ```
    /// # use burn::tensor::{Tensor, TensorData};
    /// # use epl_core::{Engine, MicroBatch, Model, Result};
    /// # fn example<M>(engine: &Engine<M>, own: Vec<MicroBatch<Tensor<2>>>) -> Result<()>
    /// # where M: Model<Batch = Tensor<2>, Carry = Tensor<2>> {
    /// let mut outputs: Vec<TensorData> = Vec::new(); // on the ranks of the last stage
    /// engine.forward(own.into_iter().map(Ok), |_, output, micro_batch| {
    ///     if !micro_batch.empty {
    ///         outputs.push(output.into_data());
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When the ranks have different numbers of micro-batches, or none, ranks of one replica run other samples, a
    /// micro-batch could not be loaded, or `end` fails.
    pub fn forward(
        &self,
        micro_batches: impl IntoIterator<Item = Result<MicroBatch<M::Batch>>>,
        mut end: impl FnMut(&M, ModelOutput<M>, &MicroBatch<M::Batch>) -> Result<()>,
    ) -> Result<()> {
        self.forward_to_loss(micro_batches, |model, carry, micro_batch| end(model, carry.into_output()?, micro_batch))
    }

    /// [`forward`](Self::forward), with the carry as the model's loss takes it.
    pub(crate) fn forward_to_loss(
        &self,
        micro_batches: impl IntoIterator<Item = Result<MicroBatch<M::Batch>>>,
        end: impl FnMut(&M, M::Carry, &MicroBatch<M::Batch>) -> Result<()>,
    ) -> Result<()> {
        let forward = Forward::new(self, "forward");
        let segment = |model: &M, index: usize, carry: Option<M::Carry>, batch: &M::Batch| {
            self.plan.forward(&self.context, model, index, carry, batch)
        };
        self.windows(&forward, micro_batches, |_| Ok(()), segment, end).and_then(measured)
    }

    /// [`forward`](Self::forward), but for the last segment, in whose place `head` runs.
    ///
    /// # Errors
    ///
    /// When the model has one segment only, what enters the last one of a chain is of another type than what leaves it, the
    /// ranks have different numbers of micro-batches, or none, ranks of one replica run other samples, a micro-batch could not
    /// be loaded, or `head` fails.
    pub(crate) fn forward_to_head(
        &self,
        micro_batches: impl IntoIterator<Item = Result<MicroBatch<M::Batch>>>,
        mut head: impl FnMut(&M, ModelOutput<M>, &MicroBatch<M::Batch>) -> Result<()>,
    ) -> Result<()> {
        let last = self.plan.segments.len() - 1;
        if last == 0 {
            return Err(Error::invalid(
                "a head in the place of the last segment of a model of 1 segment, which nothing enters; measure what \
                 leaves it, by `Evaluator::new`",
            ));
        }
        let segment = |model: &M, index: usize, carry: Option<M::Carry>, batch: &M::Batch| match carry {
            Some(carry) if index == last => carry,
            carry => self.plan.forward(&self.context, model, index, carry, batch),
        };
        let forward = Forward::new(self, "forward");
        let head = |model: &M, carry: M::Carry, micro_batch: &MicroBatch<M::Batch>| {
            // That of a chain knows its last type alone.
            let entered = carry.into_output().map_err(|_| {
                Error::invalid(format!(
                    "what enters the last segment, `{}`, is no `{}`, as which it leaves it, and a head in its place gets it: let \
                     the last link return the type that it takes, or measure what leaves it, by `Evaluator::new`",
                    self.plan.segments[last],
                    core::any::type_name::<ModelOutput<M>>()
                ))
            })?;
            head(model, entered, micro_batch)
        };
        self.windows(&forward, micro_batches, |_| Ok(()), segment, head).and_then(measured)
    }

    /// Hands one micro-batch after the other to `f`, as many on every rank. Collective, and `f` may be.
    ///
    /// # Errors
    ///
    /// When the ranks have different numbers of micro-batches, or none, one of them could not be loaded, or `f` fails.
    pub(crate) fn each_batch<B>(
        &self,
        micro_batches: impl IntoIterator<Item = Result<MicroBatch<B>>>,
        mut f: impl FnMut(&MicroBatch<B>) -> Result<()>,
    ) -> Result<()> {
        let (mut micro_batches, mut count) = (micro_batches.into_iter(), 0);
        while let Some(micro_batch) = self.next_of_all(&mut micro_batches, 1)?.pop() {
            count += 1;
            caught(|| f(&micro_batch))?;
        }
        measured(count)
    }

    /// Takes micro-batches through all stages, some at a time, of which `begin` hears before; returns how many there were.
    fn windows(
        &self,
        forward: &Forward<'_, M>,
        micro_batches: impl IntoIterator<Item = Result<MicroBatch<M::Batch>>>,
        mut begin: impl FnMut(&[MicroBatch<M::Batch>]) -> Result<()>,
        mut segment: impl FnMut(&M, usize, Option<M::Carry>, &M::Batch) -> M::Carry,
        mut end: impl FnMut(&M, M::Carry, &MicroBatch<M::Batch>) -> Result<()>,
    ) -> Result<usize> {
        let (mut links, all) = (forward.links(), 0..self.plan.segments.len());
        let (mut micro_batches, mut count) = (micro_batches.into_iter(), 0);
        loop {
            let window = self.next_of_all(&mut micro_batches, self.window())?;
            if window.is_empty() {
                break;
            }
            links.expect(count, &window)?;
            caught(|| begin(&window))?;
            caught(|| forward.run(&mut links, (count, &window), all.clone(), &mut segment, &mut end))?;
            count += window.len();
        }
        links.finish()?;
        Ok(count)
    }

    /// How many micro-batches are read ahead: with several stages as many as leave about a fifth of the time idle.
    fn window(&self) -> usize {
        match self.plan.stages.count() {
            1 => 1,
            stages => 4 * stages,
        }
    }

    /// The next micro-batches, at most so many; all ranks have as many. Collective.
    pub(super) fn next_of_all<B>(
        &self,
        micro_batches: &mut impl Iterator<Item = Result<MicroBatch<B>>>,
        most: usize,
    ) -> Result<Vec<MicroBatch<B>>> {
        let mine = micro_batches.take(most).collect::<Result<Vec<_>>>()?;
        let (world, count) = (self.context.world(), mine.len() as f64);
        // The squares tell different numbers from equal ones on every rank alike.
        let sums = world.all_reduce_values(&[count, count * count], ReduceOp::Sum)?;
        match sums[1] * world.size() as f64 == sums[0] * sums[0] {
            true => Ok(mine),
            false => Err(Error::invalid(format!(
                "this rank has {count} of the next {most} batches to evaluate, and the {} ranks together {}; give every \
                 rank the same number, with stand-ins",
                world.size(),
                sums[0]
            ))),
        }
    }
}

/// The losses of an evaluation. Those of a window are read from the device once all of it has been run.
#[derive(Default)]
struct Losses {
    sums: TermSums,
    /// Of all micro-batches.
    weights: TermWeights,
    /// Of the micro-batches of this window, and whether they are stand-ins.
    own: Vec<(TermWeights, bool)>,
    /// On the last stage: of the micro-batches of this window that were run.
    losses: Vec<(Loss, NanCauses)>,
}

impl Losses {
    /// Settles the window before, and notes the weights of the next one.
    fn begin<M: Model>(&mut self, model: &M, window: &[MicroBatch<M::Batch>], context: &Context) -> Result<()> {
        *self = core::mem::take(self).settled(context)?;
        let own = |one: &MicroBatch<M::Batch>| match weights::weights_of(model, one) {
            (weights, None) => Ok((weights, one.empty)),
            (_, Some(refusal)) => Err(Error::invalid(refusal)),
        };
        self.own = window.iter().map(own).collect::<Result<_>>()?;
        for (own, _) in &self.own {
            self.weights = core::mem::take(&mut self.weights).plus(own.clone())?;
        }
        Ok(())
    }

    /// With the losses of the window added.
    fn settled(mut self, context: &Context) -> Result<Self> {
        for ((loss, causes), (own, is_empty)) in self.losses.drain(..).zip(&self.own) {
            loss.check(own, *is_empty)?;
            if loss.differentiated.is_some() {
                return Err(Error::invalid(
                    "the model gives the gradients of its loss (`Loss::of_gradients`), of which an evaluation has no use, and not its \
                     value; measure what leaves it, by `Engine::inference`",
                ));
            }
            self.sums.add(loss, causes, own, *is_empty)?;
        }
        self.sums.settle(Squares::default(), context)?;
        Ok(self)
    }
}

/// Refuses a pass over nothing.
fn measured(count: usize) -> Result<()> {
    match count {
        0 => Err(Error::invalid("an evaluation without a batch; its measures would be no numbers")),
        _ => Ok(()),
    }
}
