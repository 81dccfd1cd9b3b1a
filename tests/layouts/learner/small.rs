//! A line through some points, by Burn's learner.

use std::path::Path;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor, TensorData, TensorReadError};
use burn_train::metric::store::EventStoreClient;
use burn_train::metric::{LossMetric, Metric, MetricMetadata, MetricName, SerializedEntry};
use burn_train::{
    EarlyStoppingStrategy, InferenceStep, Interrupter, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
};

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
        let weights: Vec<f32> = items.iter().map(|item| 1.0 + (item % 3) as f32).collect();
        Rows {
            points: Tensor::from_data(TensorData::new(points, [rows, 1]), device),
            targets: Tensor::from_data(TensorData::new(targets, [rows, 1]), device),
            weights: Tensor::from_data(TensorData::new(weights, [rows]), device),
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fails {
    Nothing,
    /// Reading the fifth point.
    Read,
    /// The step over the seventh, on whichever rank.
    Step,
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
    DataLoaderBuilder::new(PointBatcher).batch_size(4).build(Points(points, fails))
}

/// A line.
#[derive(Module, Debug)]
pub struct Net {
    line: Linear,
    /// Whether the loss is a mean over weights, and not over rows.
    is_weighted: bool,
    /// Whether its operations are to be run again in backward.
    is_run_again: bool,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        Self { line: LinearConfig::new(1, 1).init(device), is_weighted: false, is_run_again: false }
    }

    /// With a step that fails if its graph is of another kind.
    pub fn run_again(self) -> Self {
        Self { is_run_again: true, ..self }
    }

    pub fn weighted(self) -> Self {
        Self { is_weighted: true, ..self }
    }

    fn output(&self, Rows { points, targets, weights }: Rows) -> RegressionOutput {
        let largest = points.clone().max().into_scalar::<f32>();
        assert!(largest < 1e6, "a row of 7");
        let output = self.line.forward(points);
        let squares = (output.clone() - targets.clone()).powi_scalar(2).squeeze_dim::<1>(1);
        let loss = match self.is_weighted {
            true => (squares * weights.clone()).sum() / weights.sum(),
            false => squares.mean(),
        };
        RegressionOutput { loss, output, targets }
    }
}

impl TrainStep for Net {
    type Input = Rows;
    type Output = RegressionOutput;

    fn step(&self, rows: Rows) -> TrainOutput<RegressionOutput> {
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
    type Output = RegressionOutput;

    fn step(&self, rows: Rows) -> RegressionOutput {
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
