//! One pass over a validation set for several measures.

use epl_comm::ReduceOp;

use super::batch_measure::{BatchMeasure, BatchPart};
use super::measure::{Measure, Values, join};
use crate::data::{BatchShard, Division, EvaluationLoader, ValidData};
use crate::engine::{Engine, MicroBatch};
use crate::error::{Error, Result};
use crate::model::carry::Carry;
use crate::model::segment::{Model, ModelOutput};

/// Runs a model over a validation set and hands what it says to all measures.
///
/// ```
/// # use burn::tensor::{Int, Tensor};
/// # use epl_core::data::ValidData;
/// # use epl_core::evaluate::{Accuracy, Classified, Evaluator};
/// # use epl_core::{Model, Trainer};
/// # struct Images { pixels: Tensor<2>, classes: Tensor<1, Int> }
/// # fn example<M: Model<Batch = Images, Carry = Tensor<2>>>(trainer: Trainer<M>, images: ValidData<u8, Images>) {
/// // What leaves the last segment are the logits.
/// let evaluator = Evaluator::new(images, |_: &M, logits, batch: &Images| {
///     Classified::from_logits(logits, batch.classes.clone(), None)
/// });
/// let trainer = trainer.with_evaluator(evaluator.with(Accuracy::top(1)).with(Accuracy::top(5)));
/// # }
/// ```
///
/// The model runs through its stages, without autodiff, dropout off; its parameters are gathered segment by segment, as in
/// training. Every rank runs as many micro-batches, a stand-in too, so that outputs may be made by collectives. Ranks that
/// hold parts of one replica must give the same outputs.
pub struct Evaluator<'a, M: Model, O> {
    pass: Box<Pass<'a, M, O>>,
    measures: Vec<Box<dyn Measure<O> + 'a>>,
    batch_measures: Vec<Box<dyn BatchMeasure<O> + 'a>>,
}

/// Hands out the outputs of all micro-batches with their numbers of rows, 0 of a stand-in, at least on the ranks that
/// [count](counts).
type Pass<'a, M, O> = dyn FnMut(&Engine<M>, Division, &mut Add<'_, O>) -> Result<()> + 'a;
type Add<'a, O> = dyn FnMut(&O, usize) -> Result<()> + 'a;

impl<'a, M: Model + 'a, O> Evaluator<'a, M, O> {
    /// A pass over `data`. `outputs` makes what is measured of what leaves the last segment, on the ranks of the last stage;
    /// in the model that it gets, what other segments use alone may be empty.
    pub fn new<I: 'static>(
        data: ValidData<I, M::Batch>,
        mut outputs: impl FnMut(&M, ModelOutput<M>, &M::Batch) -> Result<O> + 'a,
    ) -> Self
    where
        M::Batch: 'static,
    {
        Self::over(data, move |model, carry, micro_batch| outputs(model, carry.into_output()?, &micro_batch.batch))
    }

    /// [`new`](Self::new), where the last segment makes the loss already: `head` runs in its place, with its parameters, and
    /// makes what is measured of what enters it. The last link of a chain must return the type that it takes: of the types
    /// between links a model knows the last alone.
    pub fn with_head<I: 'static>(
        data: ValidData<I, M::Batch>,
        mut head: impl FnMut(&M, ModelOutput<M>, &M::Batch) -> Result<O> + 'a,
    ) -> Self
    where
        M::Batch: 'static,
    {
        Self::of(move |engine, division, add| {
            engine.forward_to_head(load(&data, engine, division)?, |model, carry, micro_batch| {
                add(&head(model, carry, &micro_batch.batch)?, rows(micro_batch))
            })
        })
    }

    /// [`new`](Self::new), for outputs that need the number of rows, and the carry as the model's loss takes it.
    pub(super) fn over<I: 'static>(
        data: ValidData<I, M::Batch>,
        mut outputs: impl FnMut(&M, M::Carry, &MicroBatch<M::Batch>) -> Result<O> + 'a,
    ) -> Self
    where
        M::Batch: 'static,
    {
        Self::of(move |engine, division, add| {
            engine.forward_to_loss(load(&data, engine, division)?, |model, carry, micro_batch| {
                add(&outputs(model, carry, micro_batch)?, rows(micro_batch))
            })
        })
    }

    /// A pass over `data` whose outputs the engine makes in more than one forward, such as texts that a model writes. All
    /// ranks run `outputs` together, for a stand-in too, and those of a replica give the same. The batches need not be those
    /// of the training.
    pub fn by<I: 'static, B: Send + 'static>(
        data: ValidData<I, B>,
        mut outputs: impl FnMut(&Engine<M>, &B) -> Result<O> + 'a,
    ) -> Self {
        Self::of(move |engine, division, add| {
            engine.each_batch(load(&data, engine, division)?, |micro_batch| {
                let output = outputs(engine, &micro_batch.batch)?;
                if counts(engine) { add(&output, rows(micro_batch)) } else { Ok(()) }
            })
        })
    }

    fn of(pass: impl FnMut(&Engine<M>, Division, &mut Add<'_, O>) -> Result<()> + 'a) -> Self {
        Self { pass: Box::new(pass), measures: Vec::new(), batch_measures: Vec::new() }
    }

    /// Adds a measure of the outputs.
    #[must_use]
    pub fn with(mut self, measure: impl Measure<O> + 'a) -> Self {
        self.measures.push(Box::new(measure));
        self
    }

    /// Adds a measure of whole batches: those that one rank would run. Where replicas share a last, uneven batch without it, the
    /// first ones run whole ones then, and the last ones perhaps none.
    #[must_use]
    pub fn with_batches(mut self, measure: impl BatchMeasure<O> + 'a) -> Self {
        self.batch_measures.push(Box::new(measure));
        self
    }

    /// Measures: the same values on every rank. Collective.
    ///
    /// # Errors
    ///
    /// When there is no measure, two have values of one name, or the data, the model, the outputs or a measure fails.
    pub fn measure(&mut self, engine: &Engine<M>) -> Result<Values> {
        if self.measures.is_empty() && self.batch_measures.is_empty() {
            return Err(Error::invalid("an evaluator without a measure; give it one with `with`"));
        }
        let names: Vec<Vec<String>> = self.batch_measures.iter().map(|measure| measure.names()).collect();
        let mut sums = vec![0.0; self.measures.iter().map(|measure| measure.sums()).sum()];
        self.run(engine, &mut sums)?;
        let (world, group) = (engine.context().world(), engine.context().data());
        if !counts(engine) {
            sums.fill(0.0);
        }
        for (measure, names) in self.batch_measures.iter_mut().zip(&names) {
            let is_first = counts(engine) && group.rank() == 0;
            // The others' add nothing to them.
            let values = if is_first { measure.finish()? } else { vec![0.0; names.len()] };
            assert_eq!(values.len(), names.len(), "a measure has a value for each of {names:?}");
            sums.extend(values);
        }
        let sums = if world.size() > 1 { world.all_reduce_values(&sums, ReduceOp::Sum)? } else { sums };
        let (mut values, mut rest) = (Values::new(), &sums[..]);
        for measure in &self.measures {
            let (own, others) = rest.split_at(measure.sums());
            join(&mut values, measure.values(own)?)?;
            rest = others;
        }
        join(&mut values, names.into_iter().flatten().zip(rest.iter().copied()).collect())?;
        Ok(values)
    }

    /// Hands the outputs of a pass to all measures.
    fn run(&mut self, engine: &Engine<M>, sums: &mut [f64]) -> Result<()> {
        let Self { pass, measures, batch_measures } = self;
        let (context, counts) = (engine.context(), counts(engine));
        let (mesh, group) = (context.mesh(), context.data());
        let (replica, replicas) = (mesh.replica(context.world().rank()), mesh.replicas());
        let division = if batch_measures.is_empty() { Division::Even } else { Division::Whole };
        pass(engine, division, &mut |output, rows| {
            let mut rest = &mut *sums;
            for measure in measures.iter().filter(|_| rows > 0) {
                let (own, others) = rest.split_at_mut(measure.sums());
                measure.add(output, own)?;
                rest = others;
            }
            let part = BatchPart { output, rows, replica, replicas, group };
            batch_measures.iter_mut().filter(|_| counts).try_for_each(|measure| measure.add(&part))
        })
    }
}

/// How many rows of a micro-batch count.
fn rows<B>(micro_batch: &MicroBatch<B>) -> usize {
    if micro_batch.empty { 0 } else { micro_batch.samples.len() }
}

/// This rank's micro-batches of a validation set.
fn load<I: 'static, B: Send + 'static, M: Model>(
    data: &ValidData<I, B>,
    engine: &Engine<M>,
    division: Division,
) -> Result<EvaluationLoader<B>> {
    // As the model: evaluation has no graph.
    let device = engine.device().clone().without_autodiff();
    EvaluationLoader::divided(data, division, BatchShard::of(engine.context(), 1)?, &device)
}

/// Whether this rank's outputs are counted: of the ranks that hold parts of one replica, one has to.
fn counts<M: Model>(engine: &Engine<M>) -> bool {
    let (plan, coordinate) = (engine.plan(), engine.context().coordinate());
    coordinate.tensor == 0 && plan.stage() + 1 == plan.stages.count()
}
