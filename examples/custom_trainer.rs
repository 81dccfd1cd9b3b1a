//! A training loop written by hand, on public API only: what the trainer does, without the trainer.
//!
//! `cargo run --release --example custom_trainer`

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::{module::Module, tensor::Device, tensor::Tensor};
use epl::data::{BatchShard, Loader, ShuffledSampler, TrainData};
use epl::prelude::*;

/// Two linear layers.
#[derive(Module, Debug)]
pub struct Net {
    body: Linear,
    head: Linear,
}

/// A column of inputs, and what they should give.
type Points = (Tensor<2>, Tensor<2>);

impl Net {
    fn new(device: &Device) -> Self {
        Self { body: LinearConfig::new(1, 32).init(device), head: LinearConfig::new(32, 1).init(device) }
    }

    fn loss(&self, (inputs, targets): &Points) -> Tensor<1> {
        (self.head.forward(tanh(self.body.forward(inputs.clone()))) - targets.clone()).powi_scalar(2).mean()
    }
}

/// Makes columns of points.
#[derive(Clone)]
pub struct Columns;

impl Batcher<(f32, f32), Points> for Columns {
    fn batch(&self, points: Vec<(f32, f32)>, device: &Device) -> Points {
        let (inputs, targets): (Vec<f32>, Vec<f32>) = points.into_iter().unzip();
        let column = |values: Vec<f32>| Tensor::<1>::from_floats(values.as_slice(), device).unsqueeze_dim(1);
        (column(inputs), column(targets))
    }
}

/// A thousand points of a sine.
pub fn data(seed: u64) -> epl::Result<TrainData<(f32, f32), Points>> {
    let points: Vec<(f32, f32)> = (0..1000).map(|i| i as f32 / 500.0 - 1.0).map(|x| (x, (3.0 * x).sin())).collect();
    let sampler = ShuffledSampler::new(points.len(), 50, seed)?;
    TrainData::new(InMemDataset::new(points), Columns, sampler)
}

/// The model and its optimizer.
pub fn engine(epl: &Epl) -> epl::Result<Engine<WithLoss<Net, Points>>> {
    Engine::build(epl, |place| WithLoss::new(Net::new(place), Net::loss), &AdamWConfig::new())
}

/// Two ranks, two micro-batches.
pub fn config() -> epl::Result<Config> {
    Ok(Config::new().with("cluster.ranks", 2)?.with("schedule.rate", 0.01)?.with("pipeline.num_micro_batch", 2)?)
}

/// The loop. Returns the losses.
pub fn by_hand(epl: &Epl, steps: u64) -> epl::Result<Vec<f64>> {
    let mut engine = engine(epl)?;
    let share = BatchShard::of(engine.context(), epl.config().pipeline.num_micro_batch)?;
    let mut loader = Loader::start(&data(epl.config().train.seed)?, share, epl.place(), 0)?;
    let rate = LrSchedule::from_config(&epl.config().schedule)?;
    let step = |number| Ok(engine.step(loader.next_step()?.micro_batches, rate.at(number))?.loss);
    (0..steps).map(step).collect()
}

fn main() -> epl::Result<()> {
    let losses = epl::launch(&config()?, |epl| by_hand(&epl, 300))?;
    println!("loss {:.5} after 1 step, {:.5} after 300", losses[0][0], losses[0][299]);
    assert!(losses[0][299] < 0.01, "the sine was learned");
    Ok(())
}
