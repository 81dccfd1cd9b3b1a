//! A small model, its data, and a trainer of both.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, TensorData, activation};
use epl_core::data::{Sampler, ShuffledSampler, TrainData, ValidData};
use epl_core::optim::OptimizerConfig;
use epl_core::testing::run;
use epl_core::trainer::learning_rate::{Decay, LrSchedule};
use epl_core::{Engine, EngineSettings, Epl, Loss, LossWeights, Model, Place, Result, Trainer, TrainerConfig};
use serde_json::Value;

/// Two layers that learn a sum of squares.
#[derive(Module, Debug)]
pub struct Net {
    up: Linear,
    down: Linear,
}

impl Net {
    pub fn new(place: &Place) -> Self {
        Self::of_width(8, place)
    }

    /// One of `5 * width + 1` parameters.
    pub fn of_width(width: usize, place: &Place) -> Self {
        let (up, down) = (LinearConfig::new(3, width), LinearConfig::new(width, 1));
        Self { up: up.init(place), down: down.init(place) }
    }
}

#[derive(Clone, Debug)]
pub struct Points {
    input: Tensor<2>,
    target: Tensor<2>,
}

impl Model for Net {
    type Batch = Points;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    fn weights(&self, batch: &Points) -> LossWeights {
        LossWeights::new().with("error", batch.input.dims()[0] as f64)
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    fn loss(&self, (): (), batch: &Points) -> Loss {
        // Under mixed precision the layers are of 16 bits, and the data is not.
        let input = batch.input.clone().cast(self.up.weight.val().dtype());
        let output = self.down.forward(activation::tanh(self.up.forward(input))).cast(batch.target.dtype());
        Loss::new().with("error", (output - batch.target.clone()).powi_scalar(2).sum(), 1.0)
    }
}

/// Points by number; one of them may be unreadable.
#[derive(Clone)]
pub struct Numbers {
    pub samples: usize,
    pub broken: Option<usize>,
}

impl Dataset<[f64; 3]> for Numbers {
    fn get(&self, index: usize) -> Result<[f64; 3], DatasetError> {
        if self.broken == Some(index) {
            return Err(DatasetError::new(std::io::Error::other("unreadable")));
        }
        Ok([7, 13, 29].map(|prime| (index * prime % 31) as f64 / 31.0))
    }

    fn len(&self) -> usize {
        self.samples
    }
}

pub struct Pairs;

impl Batcher<[f64; 3], Points> for Pairs {
    fn batch(&self, items: Vec<[f64; 3]>, device: &Device) -> Points {
        let rows = items.len();
        let targets: Vec<f64> = items.iter().map(|item| item.iter().map(|x| x * x).sum()).collect();
        let table = |values, columns| Tensor::from_data(TensorData::new(values, [rows, columns]), device);
        Points { input: table(items.concat(), 3), target: table(targets, 1) }
    }
}

pub const SAMPLES: usize = 23;

pub fn numbers() -> Numbers {
    Numbers { samples: SAMPLES, broken: None }
}

pub fn data_from(sampler: impl Sampler + 'static) -> TrainData<[f64; 3], Points> {
    TrainData::new(numbers(), Pairs, sampler).unwrap()
}

pub fn data() -> TrainData<[f64; 3], Points> {
    data_from(ShuffledSampler::new(SAMPLES, 5, 9).unwrap())
}

pub fn valid() -> ValidData<[f64; 3], Points> {
    ValidData::new(numbers(), Pairs, 4).unwrap()
}

pub fn optimizer() -> AdamWConfig {
    AdamWConfig::new().with_epsilon(1e-4)
}

pub fn trainer<'a>(epl: &Epl, config: TrainerConfig) -> Result<Trainer<'a, Net>> {
    trainer_with(epl, config, &optimizer())
}

pub fn trainer_with<'a, O: OptimizerConfig>(
    epl: &Epl,
    config: TrainerConfig,
    optimizer: &O,
) -> Result<Trainer<'a, Net>> {
    let settings = EngineSettings { clip_norm: Some(1.0), ..Default::default() };
    let engine = Engine::new(epl.build(Net::new)?, optimizer, settings)?;
    let schedule = LrSchedule::new(0.05, Decay::Linear { steps: 40 }).with_warmup(3);
    Ok(Trainer::new(engine, config, schedule).quiet())
}

/// Evaluates every 4 and saves every 6 of `steps` steps.
pub fn config(out: &Path, steps: u64) -> TrainerConfig {
    TrainerConfig::new(steps).with_eval_every(Some(4)).with_save_every(Some(6)).with_out(Some(out.into()))
}

pub fn lines(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn values(lines: &[Value], key: &str) -> Vec<f64> {
    lines.iter().map(|line| line[key].as_f64().unwrap()).collect()
}

pub fn message<T>(result: Result<T>) -> String {
    result.err().expect("it should fail").to_string()
}

pub type Sizes = (usize, usize, usize);

/// Trains on every rank, and returns the whole parameters.
pub fn fit(sizes: Sizes, config: TrainerConfig) -> BTreeMap<String, TensorData> {
    let all = run(sizes, |epl| trainer(&epl, config.clone())?.with_valid(valid()).fit(&data())?.engine.parameters());
    all.into_iter().next().unwrap()
}
