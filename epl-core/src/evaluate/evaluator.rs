//! One pass over a validation set for several measures.

use burn::tensor::Device;
use epl_comm::ReduceOp;

use super::measure::{Measure, Values, join};
use crate::data::{EvaluationLoader, Share, ValidData};
use crate::engine::{Engine, MicroBatch};
use crate::error::{Error, Result};
use crate::segment::Segmented;

/// Runs a forward over a validation set and hands its outputs to all measures.
///
/// ```
/// # use burn::tensor::{Int, Tensor};
/// # use epl_core::data::ValidData;
/// # use epl_core::evaluate::{Accuracy, Classified, Evaluator};
/// # use epl_core::{Segmented, Trainer};
/// # struct Images { pixels: Tensor<2>, classes: Tensor<1, Int> }
/// # fn example<M: Segmented>(trainer: Trainer<M>, images: ValidData<u8, Images>, logits: fn(&M, &Images) -> Tensor<2>) {
/// let evaluator = Evaluator::new(images, move |model: &M, batch: &Images| {
///     Classified::from_logits(logits(model, batch), batch.classes.clone(), None)
/// });
/// let trainer = trainer.with_evaluator(evaluator.with(Accuracy::top(1)).with(Accuracy::top(5)));
/// # }
/// ```
///
/// The forward gets the model without autodiff, dropout off. Every rank runs it equally often, for a stand-in too, so
/// it may use collectives. Ranks that hold parts of one replica must give the same outputs.
pub struct Evaluator<'a, M, B, O> {
    load: Box<Load<B>>,
    forward: Box<Forward<'a, M, B, O>>,
    measures: Vec<Box<dyn Measure<O> + 'a>>,
}

type Load<B> = dyn Fn(Share, &Device) -> Result<EvaluationLoader<B>>;
type Forward<'a, M, B, O> = dyn FnMut(&M, &MicroBatch<B>) -> Result<O> + 'a;

impl<'a, M: Segmented, B: Send + 'static, O> Evaluator<'a, M, B, O> {
    /// A pass over `data`, of which `forward` makes the outputs. The batches need not be those of the training.
    pub fn new<I: 'static>(data: ValidData<I, B>, mut forward: impl FnMut(&M, &B) -> Result<O> + 'a) -> Self {
        Self::over(data, move |model, micro_batch| forward(model, &micro_batch.batch))
    }

    /// [`new`](Self::new), for a forward that needs the number of rows.
    pub(super) fn over<I: 'static>(
        data: ValidData<I, B>,
        forward: impl FnMut(&M, &MicroBatch<B>) -> Result<O> + 'a,
    ) -> Self {
        let load = move |share: Share, device: &Device| EvaluationLoader::start(&data, share, device);
        Self { load: Box::new(load), forward: Box::new(forward), measures: Vec::new() }
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
    /// When there is no measure, two have values of one name, or the data, the forward or a measure fails.
    pub fn measure(&mut self, engine: &Engine<M>) -> Result<Values> {
        if self.measures.is_empty() {
            return Err(Error::invalid("an evaluator without a measure; give it one with `with`"));
        }
        let sums = self.sums(engine)?;
        let data = engine.context().data();
        let sums = if data.size() > 1 { data.all_reduce_values(&sums, ReduceOp::Sum)? } else { sums };
        let (mut values, mut rest) = (Values::new(), &sums[..]);
        for measure in &self.measures {
            let (own, others) = rest.split_at(measure.sums());
            join(&mut values, measure.values(own)?)?;
            rest = others;
        }
        Ok(values)
    }

    /// The sums of this replica's samples, one measure's after the other's.
    fn sums(&mut self, engine: &Engine<M>) -> Result<Vec<f64>> {
        let share = Share::of(engine.context(), 1)?;
        // As the model: evaluation has no graph.
        let device = engine.device().clone().without_autodiff();
        let (forward, measures) = (&mut self.forward, &self.measures);
        let mut sums = vec![0.0; measures.iter().map(|measure| measure.sums()).sum()];
        engine.each_batch((self.load)(share, &device)?, |model, micro_batch| {
            let output = forward(model, micro_batch)?;
            if micro_batch.empty {
                return Ok(());
            }
            let mut rest = &mut sums[..];
            for measure in measures {
                let (own, others) = rest.split_at_mut(measure.sums());
                measure.add(&output, own)?;
                rest = others;
            }
            Ok(())
        })?;
        Ok(sums)
    }
}
