//! A line through some points, by Burn's learner.

use std::path::Path;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, ExecutionError, GradientCheckpointingStrategy, Tensor, TensorData, TensorReadError};
use burn_train::metric::store::EventStoreClient;
use burn_train::metric::{Adaptor, LossInput, LossMetric, Metric, MetricMetadata, MetricName, SerializedEntry};
use burn_train::{
    EarlyStoppingStrategy, InferenceStep, Interrupter, ItemLazy, SupervisedTraining, TrainOutput, TrainStep,
};
use epl::train::step_output;

/// Points, each with a weight.
#[derive(Clone, Debug)]
pub struct Rows {
    points: Tensor<2>,
    targets: Tensor<2>,
    weights: Tensor<1>,
}

epl::batch!(Rows { points, targets, weights });

impl Rows {
    pub fn weights(&self) -> Tensor<1> {
        self.weights.clone()
    }
}

#[derive(Clone)]
struct PointBatcher;

impl Batcher<usize, Rows> for PointBatcher {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Rows {
        let (rows, point) = (items.len(), |item: &usize| *item as f32 / 10.0);
        let points: Vec<f32> = items.iter().map(point).collect();
        let targets: Vec<f32> = items.iter().map(|item| 2.0 * point(item) - 1.0).collect();
        // Of some rows none.
        let weights: Vec<f32> = items.iter().map(|item| (item % 3) as f32).collect();
        Rows {
            points: Tensor::from_data(TensorData::new(points, [rows, 1]), device),
            targets: Tensor::from_data(TensorData::new(targets, [rows, 1]), device),
            weights: Tensor::from_data(TensorData::new(weights, [rows]), device),
        }
    }
}

/// An output of one's own.
pub struct Scored {
    loss: Tensor<1>,
    output: Tensor<2>,
    targets: Tensor<2>,
}

step_output!(Scored { loss: mean, output: rows, targets: rows });

impl ItemLazy for Scored {
    fn sync(self) -> Result<Self, ExecutionError> {
        Ok(self)
    }
}

impl Adaptor<LossInput> for Scored {
    fn adapt(&self) -> LossInput {
        LossInput::new(self.loss.clone())
    }
}

/// The mean of outputs and targets of all rows, each with a weight of its place: as exact as one of them, where a sum
/// that is small is exact only beside what cancels in it.
#[derive(Clone, Default)]
pub struct Rowwise(f64);

pub struct RowsInput(Tensor<2>);

impl Adaptor<RowsInput> for Scored {
    fn adapt(&self) -> RowsInput {
        RowsInput(Tensor::cat(vec![self.output.clone(), self.targets.clone()], 1))
    }
}

impl Metric for Rowwise {
    type Input = RowsInput;

    fn name(&self) -> MetricName {
        Arc::new("Rowwise".to_string())
    }

    fn update(&mut self, rows: &RowsInput, _metadata: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        let data = rows.0.clone().into_data();
        let weights = || (1..).map(f64::from);
        let sum: f64 = data.iter::<f64>().zip(weights()).map(|(number, weight)| number * weight).sum();
        self.0 = sum / weights().take(data.num_elements()).sum::<f64>();
        Ok(SerializedEntry::new(format!("{}", self.0), format!("{}", self.0)))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(SerializedEntry::new(format!("{}", self.0), format!("{}", self.0)))
    }

    fn clear(&mut self) {}
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fails {
    Nothing,
    /// Reading the fifth point.
    Read,
    /// The step over the seventh, on whichever rank.
    Step,
    /// Nothing; the points come in an order of this seed.
    Shuffle(u64),
}

struct Points(usize, Fails);

impl Dataset<usize> for Points {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        match self.1 {
            Fails::Read if index == 5 => Err(DatasetError::new(std::io::Error::other("no file 5"))),
            // A number that only the model knows as one that is wrong.
            Fails::Step if index == 7 => Ok(usize::MAX),
            _ => Ok(index),
        }
    }

    fn len(&self) -> usize {
        self.0
    }
}

fn loader(points: usize, fails: Fails) -> Arc<dyn DataLoader<Rows>> {
    let builder = DataLoaderBuilder::new(PointBatcher).batch_size(4);
    match fails {
        Fails::Shuffle(seed) => builder.shuffle(seed).build(Points(points, fails)),
        _ => builder.build(Points(points, fails)),
    }
}

/// A line.
#[derive(Module, Debug)]
pub struct Net {
    line: Linear,
    /// What no step has a gradient of.
    spare: Linear,
    /// Whether the loss is a mean over weights, and not over rows.
    is_weighted: bool,
    /// Whether its operations are to be run again in backward.
    is_run_again: bool,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        // Not drawn: what rounding does to a run is the same in each.
        let layer = |from, to| {
            let initializer = Initializer::Constant { value: 0.5 };
            LinearConfig::new(from, to).with_initializer(initializer).init(device)
        };
        let [line, spare] = [layer(1, 1), layer(2, 3)];
        Self { line, spare, is_weighted: false, is_run_again: false }
    }

    /// With a step that fails if its graph is of another kind.
    pub fn run_again(self) -> Self {
        Self { is_run_again: true, ..self }
    }

    pub fn weighted(self) -> Self {
        Self { is_weighted: true, ..self }
    }

    fn output(&self, Rows { points, targets, weights }: Rows) -> Scored {
        let largest = points.clone().max().into_scalar::<f32>();
        assert!(largest < 1e6, "a row of 7");
        let output = self.line.forward(points);
        let squares = (output.clone() - targets.clone()).powi_scalar(2).squeeze_dim::<1>(1);
        let loss = match self.is_weighted {
            true => (squares * weights.clone()).sum() / weights.sum(),
            false => squares.mean(),
        };
        Scored { loss, output, targets }
    }
}

/// All numbers of a model's parameters.
pub fn parameters<M: Module>(model: &M) -> Vec<f64> {
    struct Values(Vec<f64>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f64>());
        }
    }
    let mut values = Values(Vec::new());
    model.visit(&mut values);
    values.0
}

impl TrainStep for Net {
    type Input = Rows;
    type Output = Scored;

    fn step(&self, rows: Rows) -> TrainOutput<Scored> {
        let strategies =
            [self.line.weight.val().gradient_checkpointing_strategy(), rows.points.gradient_checkpointing_strategy()];
        let runs_again = |strategy| strategy == Some(GradientCheckpointingStrategy::Balanced);
        assert_eq!(strategies.map(runs_again), [self.is_run_again; 2]);
        let output = self.output(rows);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Rows;
    type Output = Scored;

    fn step(&self, rows: Rows) -> Scored {
        self.output(rows)
    }
}

/// Of 11 points, in batches of 4.
pub fn training(folder: &Path, epochs: usize) -> SupervisedTraining<Net> {
    with(folder, epochs, Fails::Nothing)
}

pub fn failing(folder: &Path, fails: Fails) -> SupervisedTraining<Net> {
    with(folder, 2, fails)
}

fn with(folder: &Path, epochs: usize, fails: Fails) -> SupervisedTraining<Net> {
    SupervisedTraining::new(folder, loader(11, fails), loader(5, Fails::Nothing))
        .metrics((LossMetric::new(),))
        .metric_train(Rowwise::default())
        .metric_valid(Rowwise::default())
        .with_application_logger(None)
        .num_epochs(epochs)
}

/// Stops behind an epoch.
#[derive(Clone)]
pub struct After(pub usize);

impl EarlyStoppingStrategy for After {
    fn should_stop(&mut self, epoch: usize, _store: &EventStoreClient) -> bool {
        epoch >= self.0
    }
}

/// Interrupts the run when it is asked for the value of an epoch.
#[derive(Clone)]
pub struct Interrupts(pub Interrupter);

impl Metric for Interrupts {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new("Interrupts".to_string())
    }

    fn update(&mut self, (): &(), _metadata: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        Ok(SerializedEntry::new("0".into(), "0".into()))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        self.0.stop(Some("enough"));
        Ok(SerializedEntry::new("0".into(), "0".into()))
    }

    fn clear(&mut self) {}
}
