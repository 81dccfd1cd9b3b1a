//! Digits of 28 × 28 pixels, as MNIST's are, drawn by rule as seven segments.

use std::path::PathBuf;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_train::metric::store::{Aggregate, Direction, Split};
use burn_train::metric::{AccuracyMetric, LearningRateMetric, LossMetric};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, LearningResult, MetricEarlyStoppingStrategy, StoppingCondition,
    SupervisedTraining, TrainOutput, TrainStep,
};
use epl::train::DataParallel;

const SIDE: usize = 28;
const CLASSES: usize = 10;

/// An image and the digit in it.
#[derive(Clone, Debug)]
pub struct Digit {
    pixels: Vec<f32>,
    label: usize,
}

/// Images, and their digits.
#[derive(Clone, Debug)]
pub struct Digits {
    images: Tensor<4>,
    targets: Tensor<1, Int>,
}

epl::batch!(Digits { images, targets });

#[derive(Clone)]
struct DigitBatcher;

impl Batcher<Digit, Digits> for DigitBatcher {
    fn batch(&self, items: Vec<Digit>, device: &Device) -> Digits {
        let pixels: Vec<f32> = items.iter().flat_map(|digit| digit.pixels.iter().copied()).collect();
        let targets: Vec<i64> = items.iter().map(|digit| digit.label as i64).collect();
        Digits {
            images: Tensor::from_data(TensorData::new(pixels, [items.len(), 1, SIDE, SIDE]), device),
            targets: Tensor::from_data(TensorData::new(targets, [items.len()]), device),
        }
    }
}

/// Which of the seven segments are lit: top, upper left, upper right, middle, lower left, lower right, bottom.
const SEGMENTS: [u8; CLASSES] =
    [0b1110111, 0b0010010, 0b1011101, 0b1011011, 0b0111010, 0b1101011, 0b1101111, 0b1010010, 0b1111111, 0b1111011];

/// A digit that is moved, and dimmed here and there, by its number.
fn digit(number: usize) -> Digit {
    let noise = |salt: usize| ((number * 7919 + salt * 104_729) % 1009) as f32 / 1009.0;
    let (label, across, down) = (number * 7 % CLASSES, 4 + number % 9, 2 + number % 5);
    let mut pixels: Vec<f32> = (0..SIDE * SIDE).map(|pixel| 0.3 * noise(pixel)).collect();
    let mut draw =
        |row: usize, column: usize| pixels[(down + row) * SIDE + across + column] = 0.6 + 0.4 * noise(row + column);
    for (bit, (row, column, is_flat)) in
        [(0, 0, true), (0, 0, false), (0, 9, false), (10, 0, true), (10, 0, false), (10, 9, false), (20, 0, true)]
            .into_iter()
            .enumerate()
    {
        if SEGMENTS[label] >> (6 - bit) & 1 == 1 {
            (0..10).for_each(|step| if is_flat { draw(row, column + step) } else { draw(row + step, column) });
        }
    }
    Digit { pixels, label }
}

fn loader(numbers: core::ops::Range<usize>) -> Arc<dyn DataLoader<Digits>> {
    let digits = InMemDataset::new(numbers.map(digit).collect());
    DataLoaderBuilder::new(DigitBatcher).batch_size(16).shuffle(42).num_workers(1).build(digits)
}

/// Two convolutions and a classifier.
#[derive(Module, Debug)]
pub struct Net {
    first: Conv2d,
    second: Conv2d,
    pool: AdaptiveAvgPool2d,
    head: Linear,
}

impl Net {
    /// Its first values come from the device.
    pub fn new(device: &Device) -> Self {
        Self {
            first: Conv2dConfig::new([1, 8], [5, 5]).with_stride([2, 2]).init(device),
            second: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([5, 5]).init(),
            head: LinearConfig::new(16 * 25, CLASSES).init(device),
        }
    }

    fn classify(&self, Digits { images, targets }: Digits) -> ClassificationOutput {
        let features = gelu(self.second.forward(gelu(self.first.forward(images))));
        let output = self.head.forward(self.pool.forward(features).flatten(1, 3));
        let loss = CrossEntropyLossConfig::new().init(&output.device()).forward(output.clone(), targets.clone());
        ClassificationOutput { loss, output, targets }
    }
}

impl TrainStep for Net {
    type Input = Digits;
    type Output = ClassificationOutput;

    fn step(&self, batch: Digits) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Digits;
    type Output = ClassificationOutput;

    fn step(&self, batch: Digits) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// What a run is of.
pub struct Run {
    /// Where metrics and checkpoints go.
    pub folder: PathBuf,
    /// What is trained.
    pub net: Net,
    /// How often all images are seen.
    pub epochs: usize,
    /// The epoch behind which it goes on.
    pub resume: Option<usize>,
}

fn stopping() -> MetricEarlyStoppingStrategy {
    let condition = StoppingCondition::NoImprovementSince { n_epochs: 2 };
    MetricEarlyStoppingStrategy::new(&LossMetric::new(), Aggregate::Mean, Direction::Lowest, Split::Valid, condition)
}

/// On one rank, as Burn has it.
pub fn plain(run: Run) -> LearningResult<Net> {
    let mut training = SupervisedTraining::new(run.folder, loader(0..107), loader(1000..1039))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .with_default_checkpointers()
        .early_stopping(stopping())
        .with_application_logger(None)
        .num_epochs(run.epochs)
        .summary();
    if let Some(epoch) = run.resume {
        training = training.checkpoint(epoch);
    }
    training.launch(Learner::new(run.net, AdamConfig::new().init(), 3e-3))
}

/// On the ranks of a configuration.
pub fn parallel(run: Run, config: &epl::Config) -> epl::Result<LearningResult<Net>> {
    let mut training = SupervisedTraining::new(run.folder, loader(0..107), loader(1000..1039))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .with_default_checkpointers()
        .early_stopping(stopping())
        .with_application_logger(None)
        .num_epochs(run.epochs)
        .with_training_strategy(DataParallel::new(config, AdamConfig::new())?.into())
        .summary();
    if let Some(epoch) = run.resume {
        training = training.checkpoint(epoch);
    }
    Ok(training.launch(Learner::new(run.net, AdamConfig::new().init(), 3e-3)))
}
