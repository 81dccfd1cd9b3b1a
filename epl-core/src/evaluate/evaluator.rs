//! One pass over a validation set for several measures.

use epl_comm::ReduceOp;

use super::measure::{Measure, Values, join};
use crate::data::{BatchShard, EvaluationLoader, ValidData};
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
}

/// Hands out the outputs of all micro-batches that count, at least on the ranks that [count](counts).
type Pass<'a, M, O> = dyn FnMut(&Engine<M>, &mut dyn FnMut(&O) -> Result<()>) -> Result<()> + 'a;

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
        Self::of(move |engine, add| {
            engine.forward_to_head(load(&data, engine)?, |model, carry, micro_batch| {
                let output = head(model, carry, &micro_batch.batch)?;
                if micro_batch.empty { Ok(()) } else { add(&output) }
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
        Self::of(move |engine, add| {
            engine.forward_to_loss(load(&data, engine)?, |model, carry, micro_batch| {
                let output = outputs(model, carry, micro_batch)?;
                if micro_batch.empty { Ok(()) } else { add(&output) }
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
        Self::of(move |engine, add| {
            engine.each_batch(load(&data, engine)?, |micro_batch| {
                let output = outputs(engine, &micro_batch.batch)?;
                if micro_batch.empty || !counts(engine) { Ok(()) } else { add(&output) }
            })
        })
    }

    fn of(pass: impl FnMut(&Engine<M>, &mut dyn FnMut(&O) -> Result<()>) -> Result<()> + 'a) -> Self {
        Self { pass: Box::new(pass), measures: Vec::new() }
    }

    /// Adds a measure of the outputs.
    #[must_use]
    pub fn with(mut self, measure: impl Measure<O> + 'a) -> Self {
        self.measures.push(Box::new(measure));
        self
    }

    /// Measures: the same values on every rank. Collective.
    ///
    /// # Errors
    ///
    /// When there is no measure, two have values of one name, or the data, the model, the outputs or a measure fails.
    pub fn measure(&mut self, engine: &Engine<M>) -> Result<Values> {
        if self.measures.is_empty() {
            return Err(Error::invalid("an evaluator without a measure; give it one with `with`"));
        }
        let (measures, world) = (&self.measures, engine.context().world());
        let mut sums = vec![0.0; measures.iter().map(|measure| measure.sums()).sum()];
        (self.pass)(engine, &mut |output| {
            let mut rest = &mut sums[..];
            for measure in measures {
                let (own, others) = rest.split_at_mut(measure.sums());
                measure.add(output, own)?;
                rest = others;
            }
            Ok(())
        })?;
        if !counts(engine) {
            sums.fill(0.0);
        }
        let sums = if world.size() > 1 { world.all_reduce_values(&sums, ReduceOp::Sum)? } else { sums };
        let (mut values, mut rest) = (Values::new(), &sums[..]);
        for measure in &self.measures {
            let (own, others) = rest.split_at(measure.sums());
            join(&mut values, measure.values(own)?)?;
            rest = others;
        }
        Ok(values)
    }
}

/// This rank's micro-batches of a validation set.
fn load<I: 'static, B: Send + 'static, M: Model>(
    data: &ValidData<I, B>,
    engine: &Engine<M>,
) -> Result<EvaluationLoader<B>> {
    // As the model: evaluation has no graph.
    let device = engine.device().clone().without_autodiff();
    EvaluationLoader::start(data, BatchShard::of(engine.context(), 1)?, &device)
}

/// Whether this rank's outputs are counted: of the ranks that hold parts of one replica, one has to.
fn counts<M: Model>(engine: &Engine<M>) -> bool {
    let (plan, coordinate) = (engine.plan(), engine.context().coordinate());
    coordinate.tensor == 0 && plan.stage() + 1 == plan.stages.count()
}
