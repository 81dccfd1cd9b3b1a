//! Texts of unequal lengths in four classes, made by rule: a text is of the class that most of its words are of.

use std::path::PathBuf;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, decay::WeightDecayConfig};
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn_train::metric::{AccuracyMetric, LearningRateMetric, LossMetric};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, LearningResult, SupervisedTraining, TrainOutput, TrainStep,
};
use epl::train::DataParallel;

const CLASSES: usize = 4;
const WORDS: usize = 40;
const LONGEST: usize = 12;
const WIDTH: usize = 16;

/// The numbers of a text's words, and its class.
#[derive(Clone, Debug)]
pub struct Text {
    words: Vec<i64>,
    label: usize,
}

/// Texts that are padded to the longest, and their classes.
#[derive(Clone, Debug)]
pub struct Texts {
    words: Tensor<2, Int>,
    is_padding: Tensor<2, Bool>,
    labels: Tensor<1, Int>,
}

epl::batch!(Texts { words, is_padding, labels });

#[derive(Clone)]
struct TextBatcher;

impl Batcher<Text, Texts> for TextBatcher {
    fn batch(&self, items: Vec<Text>, device: &Device) -> Texts {
        let longest = items.iter().map(|text| text.words.len()).max().unwrap_or(0);
        let word = |text: &Text, at: usize| text.words.get(at).copied();
        let all = |text: &Text| (0..longest).map(|at| word(text, at)).collect::<Vec<_>>();
        let words: Vec<Option<i64>> = items.iter().flat_map(all).collect();
        let shape = [items.len(), longest];
        let numbers: Vec<i64> = words.iter().map(|word| word.unwrap_or(0)).collect();
        let padding: Vec<bool> = words.iter().map(Option::is_none).collect();
        let labels: Vec<i64> = items.iter().map(|text| text.label as i64).collect();
        Texts {
            words: Tensor::from_data(TensorData::new(numbers, shape), device),
            is_padding: Tensor::from_data(TensorData::new(padding, shape), device),
            labels: Tensor::from_data(TensorData::new(labels, [items.len()]), device),
        }
    }
}

/// A text by its number: every third word is any, the others are of its class.
fn text(number: usize) -> Text {
    let (label, length) = (number * 5 % CLASSES, 4 + number * 3 % (LONGEST - 3));
    let word = |at: usize| {
        let any = (number * 31 + at * 17 + number * at * 13) % WORDS;
        if at % 3 == 2 { any } else { any / CLASSES * CLASSES + label }
    };
    Text { words: (0..length).map(|at| word(at) as i64).collect(), label }
}

fn loader(numbers: core::ops::Range<usize>) -> Arc<dyn DataLoader<Texts>> {
    DataLoaderBuilder::new(TextBatcher).batch_size(10).shuffle(7).build(InMemDataset::new(numbers.map(text).collect()))
}

/// An encoder of two layers, and a classifier of the mean of what it says of the words.
#[derive(Module, Debug)]
pub struct Net {
    embedding: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

impl Net {
    /// Its first values come from the device.
    pub fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(WORDS, WIDTH).init(device),
            encoder: TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 2, 2).with_dropout(0.0).init(device),
            head: LinearConfig::new(WIDTH, CLASSES).init(device),
        }
    }

    fn classify(&self, Texts { words, is_padding, labels }: Texts) -> ClassificationOutput {
        let input = TransformerEncoderInput::new(self.embedding.forward(words)).mask_pad(is_padding.clone());
        let counts = is_padding.bool_not().float().unsqueeze_dim::<3>(2);
        let said = (self.encoder.forward(input) * counts.clone()).sum_dim(1) / counts.sum_dim(1);
        let output = self.head.forward(said.squeeze_dim::<2>(1));
        let loss = CrossEntropyLossConfig::new().init(&output.device()).forward(output.clone(), labels.clone());
        ClassificationOutput { loss, output, targets: labels }
    }
}

impl TrainStep for Net {
    type Input = Texts;
    type Output = ClassificationOutput;

    fn step(&self, batch: Texts) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Texts;
    type Output = ClassificationOutput;

    fn step(&self, batch: Texts) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// What a run is of.
pub struct Run {
    /// Where metrics and checkpoints go.
    pub folder: PathBuf,
    /// What is trained.
    pub net: Net,
    /// How often all texts are seen.
    pub epochs: usize,
    /// The epoch behind which it goes on.
    pub resume: Option<usize>,
}

fn adam() -> AdamConfig {
    AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(5e-5)))
}

fn noam() -> NoamLrSchedulerConfig {
    NoamLrSchedulerConfig::new(1e-1).with_warmup_steps(20).with_model_size(WIDTH)
}

/// On one rank, as Burn has it: two batches a step.
pub fn plain(run: Run) -> LearningResult<Net> {
    let mut training = SupervisedTraining::new(run.folder, loader(0..73), loader(1000..1025))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .with_default_checkpointers()
        .with_application_logger(None)
        .grads_accumulation(2)
        .num_epochs(run.epochs)
        .summary();
    if let Some(epoch) = run.resume {
        training = training.checkpoint(epoch);
    }
    training.launch(Learner::new(run.net, adam().init(), noam().init().expect("a valid schedule")))
}

/// On the ranks of a configuration.
pub fn parallel(run: Run, config: &epl::Config) -> epl::Result<LearningResult<Net>> {
    let mut training = SupervisedTraining::new(run.folder, loader(0..73), loader(1000..1025))
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .metric_train_numeric(LearningRateMetric::new())
        .with_default_checkpointers()
        .with_application_logger(None)
        .grads_accumulation(2)
        .num_epochs(run.epochs)
        .with_training_strategy(DataParallel::new(config, adam())?.into())
        .summary();
    if let Some(epoch) = run.resume {
        training = training.checkpoint(epoch);
    }
    Ok(training.launch(Learner::new(run.net, adam().init(), noam().init().expect("a valid schedule"))))
}
