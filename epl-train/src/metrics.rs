//! Burn's metrics as measures of EPL's evaluators.

use burn::data::dataloader::Progress;
use burn::tensor::TensorReadError;
use burn_train::metric::{Adaptor, Metric, MetricMetadata, Numeric};
use epl_comm::ReduceOp;
use epl_core::evaluate::{BatchMeasure, BatchPart};
use epl_core::{Error, Result};

use crate::output::{Part, Parts, StepOutput};

/// What a mean in an output is a mean over.
type Weight<O> = Box<dyn Fn(&O) -> f64>;

/// Metrics of Burn's, measured by an [`Evaluator`](epl_core::evaluate::Evaluator) whose outputs are those of a step of Burn's
/// learner, or of one's own ([`step_output!`](crate::step_output)).
///
/// ```
/// use burn::tensor::{Int, Tensor};
/// use burn_train::ClassificationOutput;
/// use burn_train::metric::{AccuracyMetric, LossInput, LossMetric};
/// use epl_core::evaluate::Evaluator;
/// use epl_core::{Model, data::ValidData};
/// use epl_train::BurnMetrics;
///
/// type Images = (Tensor<2>, Tensor<1, Int>);
///
/// fn evaluator<M: Model<Batch = Images, Carry = Tensor<2>> + 'static>(
///     images: ValidData<u8, Images>,
///     loss: fn(Tensor<2>, Tensor<1, Int>) -> Tensor<1>,
/// ) -> Evaluator<'static, M, ClassificationOutput> {
///     // What leaves the last segment are the logits.
///     let outputs = move |_: &M, logits: Tensor<2>, (_, classes): &Images| {
///         Ok(ClassificationOutput::new(loss(logits.clone(), classes.clone()), logits, classes.clone()))
///     };
///     let metrics = BurnMetrics::new()
///         .with(AccuracyMetric::new())
///         .with_input(LossMetric::new(), |output: &ClassificationOutput| LossInput::new(output.loss.clone()));
///     Evaluator::new(images, outputs).with_batches(metrics)
/// }
/// ```
///
/// The values are the metrics' final ones, under their own names, such as `Accuracy`: those of Burn's loop on one rank over batches
/// of as many samples as the [`ValidData`](epl_core::data::ValidData) says, in its order, under every layout. What Burn makes of
/// batches holds here, too: a `LossMetric` is a mean of the batches' means, in which a last, smaller batch counts as a whole one
/// ([`MeanLoss`](epl_core::evaluate::MeanLoss) counts samples); an `AccuracyMetric` counts rows, and does not depend on batches.
///
/// The outputs of all rows are brought to one rank, batch by batch; what a metric keeps, it keeps there.
pub struct BurnMetrics<O> {
    metrics: Vec<Box<dyn AnyMetric<O>>>,
    weight: Option<Weight<O>>,
    prefix: String,
    /// Rows and batches of the pass.
    rows: usize,
    batches: usize,
}

impl<O: StepOutput> Default for BurnMetrics<O> {
    fn default() -> Self {
        Self::new()
    }
}

impl<O: StepOutput> BurnMetrics<O> {
    /// None yet.
    pub fn new() -> Self {
        Self { metrics: Vec::new(), weight: None, prefix: String::new(), rows: 0, batches: 0 }
    }

    /// Adds a metric, whose input the outputs give by themselves, as those of Burn do.
    #[must_use]
    pub fn with<M>(self, metric: M) -> Self
    where
        M: Metric + Numeric + 'static,
        O: Adaptor<M::Input> + 'static,
    {
        self.with_input(metric, <O as Adaptor<M::Input>>::adapt)
    }

    /// Adds a metric, with what its input is of an output.
    #[must_use]
    pub fn with_input<M>(mut self, metric: M, input: impl Fn(&O) -> M::Input + 'static) -> Self
    where
        M: Metric + Numeric + 'static,
        O: 'static,
    {
        self.metrics.push(Box::new(Adapted { metric, input }));
        self
    }

    /// Puts this before the names of the values, where other evaluations have the same.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.to_string();
        self
    }

    /// Says what a mean in an output is a mean over, where it is not its rows, such as the targets that are no padding. Only asked
    /// where the devices of a stage divide the rows of a batch.
    #[must_use]
    pub fn weighted_by(mut self, weight: impl Fn(&O) -> f64 + 'static) -> Self {
        self.weight = Some(Box::new(weight));
        self
    }

    /// Rows of the batch of each replica, and what it weighs. Collective.
    fn totals(&self, part: &BatchPart<'_, O>, weight: f64) -> Result<Vec<(f64, f64)>> {
        let mut all = vec![0.0; 2 * part.replicas];
        (all[part.replica], all[part.replicas + part.replica]) = (part.rows as f64, weight);
        if part.group.size() > 1 {
            all = part.group.all_reduce_values(&all, ReduceOp::Sum)?;
        }
        let (rows, weights) = all.split_at(part.replicas);
        Ok(rows.iter().copied().zip(weights.iter().copied()).collect())
    }
}

impl<O: StepOutput> BatchMeasure<O> for BurnMetrics<O> {
    fn names(&self) -> Vec<String> {
        self.metrics.iter().map(|metric| format!("{}{}", self.prefix, metric.name())).collect()
    }

    fn add(&mut self, part: &BatchPart<'_, O>) -> Result<()> {
        let weight = match &self.weight {
            _ if part.rows == 0 => 0.0,
            Some(weight) => weight(part.output),
            None => part.rows as f64,
        };
        let totals = self.totals(part, weight)?;
        for (replica, (rows, total)) in totals.into_iter().enumerate().filter(|(_, (rows, _))| *rows > 0.0) {
            // Of another batch this rank's output is none.
            let is_own = part.replica == replica && part.rows > 0;
            let share = is_own.then(|| if part.rows as f64 == rows { 1.0 } else { weight / total });
            let output = O::join(&Parts::new(&[Part { output: part.output, share }], part.group))?;
            self.rows += rows as usize;
            self.batches += 1;
            if part.group.rank() != 0 {
                continue;
            }
            // How many there will be is not known.
            let progress =
                Progress { items_processed: self.rows, items_total: self.rows, unit: Some("items".to_string()) };
            let metadata = MetricMetadata { progress, iteration: Some(self.batches), lr: None };
            for metric in &mut self.metrics {
                metric.update(&output, &metadata).map_err(|error| failed(&metric.name(), &error))?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<f64>> {
        (self.rows, self.batches) = (0, 0);
        let value =
            |metric: &mut Box<dyn AnyMetric<O>>| metric.finish().map_err(|error| failed(&metric.name(), &error));
        self.metrics.iter_mut().map(value).collect()
    }
}

fn failed(metric: &str, error: &TensorReadError) -> Error {
    Error::invalid(format!("Burn's metric `{metric}` could not be computed: {error}"))
}

/// A metric, whatever its input is.
trait AnyMetric<O> {
    fn name(&self) -> String;

    fn update(&mut self, output: &O, metadata: &MetricMetadata) -> Result<(), TensorReadError>;

    /// The final value of the batches since the last one.
    fn finish(&mut self) -> Result<f64, TensorReadError>;
}

struct Adapted<M, F> {
    metric: M,
    input: F,
}

impl<O, M: Metric + Numeric, F: Fn(&O) -> M::Input> AnyMetric<O> for Adapted<M, F> {
    fn name(&self) -> String {
        self.metric.name().to_string()
    }

    fn update(&mut self, output: &O, metadata: &MetricMetadata) -> Result<(), TensorReadError> {
        self.metric.update(&(self.input)(output), metadata).map(drop)
    }

    fn finish(&mut self) -> Result<f64, TensorReadError> {
        self.metric.compute()?;
        let value = self.metric.final_value().current();
        self.metric.clear();
        Ok(value)
    }
}
