//! The learner's epochs, as one rank runs them.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use burn::data::dataloader::DataLoaderIterator;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::{ModuleMapper, Param, ParamId};
use burn::optim::OptimizerRecord;
use burn::tensor::{GradientCheckpointingStrategy, Tensor};
use burn_train::train::WorkerFailure;
use burn_train::{
    InferenceStep, Learner, LearnerEvent, LearnerModel, TrainLoader, TrainOutput, TrainStep, TrainingError, ValidLoader,
};
use epl_comm::ReduceOp;
use epl_core::data::{BatchShard, Rows};
use epl_core::optim::OptimizerConfig;
use epl_core::{Engine, Epl, Error, Result, WithLoss};

use crate::batch::{self, Part, Weight, Whole};
use crate::desk::{At, Desk, processed};
use crate::feed::{Fed, Feed};
use crate::output::{self, Parts, StepOutput};
use crate::records;
use crate::shared::{AtDesk, Reads, Shared, TrainInput, ValidInput, lock};

type TrainOut<M> = <M as TrainStep>::Output;

/// What the steps of this rank returned for metrics, with the number of the batch in its step.
type Outbox<T> = Arc<Mutex<Vec<(usize, T)>>>;

/// Runs all epochs on one rank.
///
/// # Errors
///
/// When a rank fails.
pub(crate) fn run<M, O>(epl: Epl, shared: &Shared<'_, M, O>) -> Result<()>
where
    M: LearnerModel + TrainStep<Input: Rows, Output: StepOutput> + InferenceStep<Input: Rows, Output: StepOutput>,
    O: OptimizerConfig + Sync,
{
    let mut device = epl.place().device().clone();
    if shared.told.checkpointing {
        device = device.gradient_checkpointing();
    }
    let first = shared.device.get_or_init(|| device.clone());
    if *first != device {
        return Err(Error::invalid(format!(
            "ranks of one process on {first:?} and {device:?}, and a batch of the learner's loader is on one; start a process for \
             each device, by `epl-launch`"
        )));
    }
    let is_first = epl.context().world().rank() == 0;
    let at_desk = AtDesk { desk: if is_first { lock(&shared.desk).take() } else { None }, back: &shared.desk };
    let reads = !shared.is_read.swap(true, Ordering::SeqCst);
    let _reads = reads.then(|| Reads(&shared.feeds));
    let loaders = reads
        .then(|| (shared.loaders.0.to_device(&device), shared.loaders.1.to_device(&device.clone().without_autodiff())));
    let mut learner = lock(&shared.learner).clone();
    let ids = records::named(&learner.model()).into_iter().map(|named| named.id).collect();
    learner.fork(&device);
    let (outbox, mut model) = (Outbox::<TrainOut<M>>::default(), learner.model());
    if shared.told.checkpointing {
        model = model.map(&mut RunAgain);
    }
    let engine = engine(&epl, shared, model, &outbox)?;
    let valid_weight = shared.told.valid_weight()?;
    let processes = epl.context().world().all_reduce_values(&[f64::from(u8::from(reads))], ReduceOp::Sum)?[0];
    // All ranks have come here: each has taken its part of what the learner came with.
    *lock(&shared.states) = Arc::default();
    let reads_alone = processes == 1.0;
    let mut run = RankRun {
        shared,
        engine,
        learner,
        ids,
        outbox,
        at_desk,
        reads: loaders,
        reads_alone,
        valid_weight,
        taken: (0, 0),
    };
    match panic::catch_unwind(AssertUnwindSafe(|| run.all())) {
        Ok(Ok(())) => run.keep(),
        failed => {
            // Nor is lost what was learned before.
            let _ = panic::catch_unwind(AssertUnwindSafe(|| run.keep()));
            failed.unwrap_or_else(|cause| panic::resume_unwind(cause))
        }
    }
}

/// Lets the operations of a model's parameters be run again in backward, which a fork to such a device does not.
struct RunAgain;

impl ModuleMapper for RunAgain {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let asks = value.is_require_grad();
            let again = Tensor::from_inner(value.inner());
            again.with_gradient_checkpointing_strategy(GradientCheckpointingStrategy::Balanced).set_require_grad(asks)
        })
    }
}

/// The engine of a rank.
fn engine<M, O>(
    epl: &Epl,
    shared: &Shared<'_, M, O>,
    model: M,
    outbox: &Outbox<TrainOut<M>>,
) -> Result<Engine<WithLoss<M, Part<TrainInput<M>>>>>
where
    M: LearnerModel + TrainStep<Input: Rows>,
    O: OptimizerConfig,
{
    let weight = shared.told.weight.clone();
    let wrapped = |_: &epl_core::Place| {
        let (outbox, weight) = (outbox.clone(), weight.clone());
        let step = move |model: &M, part: &Part<TrainInput<M>>| {
            let TrainOutput { grads, item } = TrainStep::step(model, part.batch());
            lock(&outbox).push((part.number, item));
            // The learner sums the means of the batches that it accumulates.
            (grads, part.batches as f64)
        };
        WithLoss::with_backward(model.clone(), step).weighted_by(move |part: &Part<_>| part.share(weight.as_ref()))
    };
    let mut engine = Engine::build(epl, wrapped, &shared.told.optimizer)?;
    let (world, mesh) = (engine.context().world().size(), engine.context().mesh());
    if mesh.replicas() != world {
        return Err(Error::invalid(format!(
            "{world} ranks make {} replicas, and each rank of a learner's run is one: the model opens scopes, or holds layers that \
             are split; train it by `Engine`",
            mesh.replicas()
        )));
    }
    let states = lock(&shared.states).clone();
    if !states.is_empty() {
        engine.load_optimizer_states(&states)?;
    }
    Ok(engine)
}

/// A rank that runs the learner's epochs.
struct RankRun<'a, M: LearnerModel, O>
where
    TrainInput<M>: Rows,
{
    shared: &'a Shared<'a, M, O>,
    engine: Engine<WithLoss<M, Part<TrainInput<M>>>>,
    /// Its scheduler says the rates; on the first rank its model and optimizer are filled where they are saved.
    learner: Learner<M>,
    /// The identifiers of the learner's parameters, in the order of the plan's records.
    ids: Vec<ParamId>,
    outbox: Outbox<TrainOut<M>>,
    at_desk: AtDesk<'a, M>,
    reads: Option<(TrainLoader<M>, ValidLoader<M>)>,
    /// Whether one rank reads for all: there is one process.
    reads_alone: bool,
    /// What batches of validation weigh.
    valid_weight: Option<Weight<ValidInput<M>>>,
    /// How many batches and ends of epochs were taken, of training and of validation.
    taken: (u64, u64),
}

/// Where this rank's batches come from.
enum Source<'l, I> {
    /// The loader, and how many batches of the epoch it has given.
    Reads(Box<dyn DataLoaderIterator<I> + 'l>, usize),
    Follows,
}

impl<M, O> RankRun<'_, M, O>
where
    M: LearnerModel + TrainStep<Input: Rows, Output: StepOutput> + InferenceStep<Input: Rows, Output: StepOutput>,
    O: OptimizerConfig,
{
    fn all(&mut self) -> Result<()> {
        for epoch in self.shared.epochs.clone() {
            if self.epoch(epoch)? {
                break;
            }
        }
        self.tell_why()
    }

    /// Keeps the model as far as it has come for who called the learner.
    fn keep(&mut self) -> Result<()> {
        if self.reads.is_some() {
            let model = self.engine.inference()?.model;
            self.learner.load_model(model.into_record());
            *lock(&self.shared.learner) = self.learner.clone();
        }
        Ok(())
    }

    /// Tells other processes why a run has ended before its last epoch, if somebody said so or something failed. Collective.
    fn tell_why(&self) -> Result<()> {
        let own = &self.shared.interrupter;
        let why = match (own.error(), own.interruption()) {
            (Some(error), _) => format!("{FAILED}{error}"),
            (None, Some(interruption)) => format!("{STOPPED}{}", interruption.reason.unwrap_or_default()),
            (None, None) => String::new(),
        };
        let all = self.engine.context().world().all_gather_texts(&why)?;
        // An error goes before a mere stop.
        let first = |begin: &str| all.iter().enumerate().find(|(_, why)| why.starts_with(begin));
        let Some((rank, why)) = first(FAILED).or_else(|| first(STOPPED)) else { return Ok(()) };
        let knows = if why.starts_with(FAILED) { own.error().is_some() } else { own.should_stop() };
        if knows {
            return Ok(());
        }
        match why.strip_prefix(FAILED) {
            Some(message) => {
                own.fail(TrainingError::Workers(vec![WorkerFailure { device_id: rank, message: message.into() }]))
            }
            None => own.stop(why.strip_prefix(STOPPED).filter(|reason| !reason.is_empty())),
        }
        Ok(())
    }

    /// Runs an epoch; whether it is the last one.
    fn epoch(&mut self, epoch: usize) -> Result<bool> {
        let totals = (self.shared.loaders.0.num_items(), self.shared.loaders.1.num_items());
        self.at_desk(|desk| desk.train(LearnerEvent::StartSplit { epoch_number: epoch, total_items: totals.0 }));
        self.train()?;
        self.at_desk(|desk| desk.train(LearnerEvent::EndSplit(epoch)));
        if self.any(self.shared.interrupter.should_stop())? {
            return Ok(true);
        }
        self.at_desk(|desk| desk.valid(LearnerEvent::StartSplit { epoch_number: epoch, total_items: totals.1 }));
        self.validate()?;
        self.at_desk(|desk| desk.end_epoch(epoch));
        if self.any(self.shared.interrupter.should_stop())? {
            return Ok(true);
        }
        if self.shared.saves {
            self.save(epoch)?;
        }
        let stops = self.at_desk.desk.as_mut().is_some_and(|desk| desk.stops_behind(epoch));
        self.any(stops)
    }

    /// Whether something is so on any rank. Collective.
    fn any(&self, own: bool) -> Result<bool> {
        let world = self.engine.context().world();
        Ok(world.all_reduce_values(&[f64::from(u8::from(own))], ReduceOp::Max)?[0] > 0.0)
    }

    fn at_desk(&mut self, f: impl FnOnce(&mut Desk<M>)) {
        if let Some(desk) = &mut self.at_desk.desk {
            f(desk);
        }
    }

    fn train(&mut self) -> Result<()> {
        let loader = self.reads.as_ref().map(|(train, _)| train.clone());
        let mut source = loader.as_ref().map_or(Source::Follows, |loader| Source::Reads(loader.iter(), 0));
        let (mut iteration, mut held) = (0, Vec::new());
        loop {
            let fed = self.next(&mut source, &self.shared.feeds.0, self.taken.0, self.shared.told.weight.as_ref())?;
            self.taken.0 += 1;
            let (is_end, is_completed) = match fed {
                // As the learner does: what is accumulated is no whole step.
                Fed::Failed => return Ok(()),
                Fed::End => (true, true),
                Fed::Batch(whole, progress) => {
                    iteration += 1;
                    let is_completed = progress.is_completed();
                    held.push((whole, At { progress, iteration, rate: None }));
                    (false, is_completed)
                }
            };
            if !held.is_empty() && (held.len() == self.shared.accumulation || is_completed) {
                self.step(core::mem::take(&mut held))?;
                if self.any(self.shared.interrupter.should_stop())? {
                    // Whoever reads has put nothing yet that the others did not take.
                    return Ok(());
                }
            }
            if is_end {
                return Ok(());
            }
        }
    }

    /// One step over the batches that are accumulated.
    fn step(&mut self, held: Vec<(Arc<Whole<TrainInput<M>>>, At)>) -> Result<()> {
        let before = self.learner.lr_current();
        self.learner.lr_step();
        let rates = self.learner.lr_current();
        self.set_rates(&rates)?;
        let batches: Vec<_> = held.iter().map(|(whole, _)| whole.clone()).collect();
        self.engine.train_batches(&Part::of_step(&batches), rates.base())?;
        let mut outputs = core::mem::take(&mut *lock(&self.outbox)).into_iter().peekable();
        let last = held.len() - 1;
        for (number, (whole, at)) in held.into_iter().enumerate() {
            let own: Vec<_> =
                core::iter::from_fn(|| outputs.next_if(|(of, _)| *of == number)).map(|(_, output)| output).collect();
            let output = self.joined(&whole, own, self.shared.told.weight.as_ref())?;
            let rate = Some(if number == last { rates.clone() } else { before.clone() });
            self.at_desk(|desk| desk.train(processed(output, At { rate, ..at })));
        }
        Ok(())
    }

    /// Gives the parameters the rates of the learner's scheduler, of which groups may have their own.
    fn set_rates(&mut self, rates: &ModuleLearningRate) -> Result<()> {
        let records = self.engine.plan().records().iter();
        let all: Vec<f64> =
            records.zip(&self.ids).map(|(record, id)| rates.lr_from_param(*id, Some(&record.name))).collect();
        let is_one = all.iter().all(|rate| *rate == rates.base());
        self.engine.set_rates((!is_one).then_some(&all[..]))
    }

    fn validate(&mut self) -> Result<()> {
        let model = self.engine.inference()?.model;
        let loader = self.reads.as_ref().map(|(_, valid)| valid.clone());
        let mut source = loader.as_ref().map_or(Source::Follows, |loader| Source::Reads(loader.iter(), 0));
        let mut iteration = 0;
        loop {
            let fed = self.next(&mut source, &self.shared.feeds.1, self.taken.1, self.valid_weight.as_ref())?;
            self.taken.1 += 1;
            let Fed::Batch(whole, progress) = fed else { return Ok(()) };
            iteration += 1;
            let rows = BatchShard::of(self.engine.context(), 1)?.rows(whole.rows()).remove(0);
            // Without a row, the first stands in.
            let rows = if rows.is_empty() { 0..1 } else { rows };
            let own = InferenceStep::step(&model, whole.narrow(rows));
            let output = self.joined(&whole, vec![own], self.valid_weight.as_ref())?;
            self.at_desk(|desk| desk.valid(processed(output, At { progress, iteration, rate: None })));
            if self.any(self.shared.interrupter.should_stop())? {
                return Ok(());
            }
        }
    }

    /// The output of a batch from those of this rank's micro-batches and of the other ranks. Collective.
    fn joined<I: Rows, T: StepOutput>(&self, whole: &Whole<I>, own: Vec<T>, weight: Option<&Weight<I>>) -> Result<T> {
        let rows = BatchShard::of(self.engine.context(), own.len())?.rows(whole.rows());
        let part = |(output, rows): (_, core::ops::Range<usize>)| {
            let share = (!rows.is_empty()).then(|| batch::share(whole, rows, weight));
            output::Part { output, share }
        };
        let parts: Vec<_> = own.iter().zip(rows).map(part).collect();
        T::join(&Parts::new(&parts, self.engine.context().data()))
    }

    /// Fills the learner, and saves it, if its checkpointing strategy says so.
    fn save(&mut self, epoch: usize) -> Result<()> {
        let (model, states) = (self.engine.inference()?.model, self.engine.optimizer_states_on_first()?);
        let Some(desk) = &mut self.at_desk.desk else { return Ok(()) };
        self.learner.load_model(model.into_record());
        self.learner.load_optim(records::record(states, self.engine.plan().records())?);
        desk.checkpoint(&self.learner, epoch);
        self.learner.load_optim(OptimizerRecord::default());
        Ok(())
    }

    /// The next batch of a split, read here or by another rank of this process; the same in all processes. Collective.
    fn next<I: Rows>(
        &self,
        source: &mut Source<'_, I>,
        feed: &Feed<I>,
        taken: u64,
        weight: Option<&Weight<I>>,
    ) -> Result<Fed<I>> {
        let fed = match source {
            Source::Follows => match feed.take(taken) {
                Some(fed) => fed,
                None => {
                    // Whoever has left says why.
                    self.engine.context().world().barrier()?;
                    return Err(Error::invalid("the rank that reads for this process has left"));
                }
            },
            Source::Reads(loader, given) => {
                *given += 1;
                let in_full = *given <= IN_FULL;
                let fed = match loader.next() {
                    None => Fed::End,
                    Some(Ok(batch)) => Fed::Batch(Arc::new(Whole::new(batch, weight, in_full)?), loader.progress()),
                    Some(Err(error)) => {
                        self.shared.interrupter.fail(error);
                        Fed::Failed
                    }
                };
                feed.put(fed.clone());
                fed
            }
        };
        if self.reads_alone { Ok(fed) } else { self.same_in_all(fed) }
    }

    /// What all processes have read; that one has failed, if it has. Collective.
    ///
    /// # Errors
    ///
    /// When they have read different batches.
    fn same_in_all<I: Rows>(&self, fed: Fed<I>) -> Result<Fed<I>> {
        let world = self.engine.context().world();
        let own = match &fed {
            Fed::Batch(whole, _) => [whole.rows() as i64, whole.digest().cast_signed()],
            Fed::End => [END, 0],
            Fed::Failed => [BROKEN, 0],
        };
        let all = world.all_gather_counts(&own)?;
        if all.iter().any(|one| one[0] == BROKEN) {
            return Ok(Fed::Failed);
        }
        let Some(other) = all.iter().position(|one| *one != all[0]) else { return Ok(fed) };
        let what = |one: &[i64]| match one[0] {
            END => "is at the end of its epoch".to_string(),
            rows => format!("has a batch of {rows} rows (bits {:016x})", one[1]),
        };
        Err(Error::invalid(format!(
            "{} {}, and {}, of another process, {}: each process iterates its own loader, which must give the same batches in all; \
             seed what shuffles (`shuffle(SEED)`), read on one thread (`num_workers(1)`), and let the batcher make the same of an \
             item everywhere",
            world.global(0),
            what(&all[0]),
            world.global(other),
            what(&all[other]),
        )))
    }
}

/// So many batches of each epoch are compared between processes by all of their values. Later ones on an accelerator, which would
/// have to be waited for, by their shapes.
const IN_FULL: usize = 4;

/// In the place of a batch's rows.
const END: i64 = -1;
const BROKEN: i64 = -2;

/// How ranks tell each other why a run has ended.
const FAILED: &str = "failed: ";
const STOPPED: &str = "stopped: ";
