//! The smallest program: a two-layer Burn model on two ranks.
//!
//! `cargo run --release --example smallest`

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::{module::Module, tensor::Device, tensor::Tensor};
use epl::data::{ShuffledSampler, TrainData};
use epl::prelude::*;

#[derive(Module, Debug)]
struct Net {
    body: Linear,
    head: Linear,
}

struct Batch {
    inputs: Tensor<2>,
    targets: Tensor<2>,
}

impl Model for Net {
    type Batch = Batch;
    type Carry = ();

    fn segments(&self) -> usize {
        1
    }

    /// What the loss is divided by: the rows of all micro-batches of all ranks.
    fn weights(&self, batch: &Batch) -> LossWeights {
        LossWeights::new().with("squares", batch.inputs.dims()[0] as f64)
    }

    fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

    /// A sum, not a mean, so that uneven batches come out right.
    fn loss(&self, (): (), batch: &Batch) -> Loss {
        let outputs = self.head.forward(tanh(self.body.forward(batch.inputs.clone())));
        Loss::new().with("squares", (outputs - batch.targets.clone()).powi_scalar(2).sum(), 1.0)
    }
}

#[derive(Clone)]
struct Points;

impl Batcher<(f32, f32), Batch> for Points {
    fn batch(&self, points: Vec<(f32, f32)>, device: &Device) -> Batch {
        let (inputs, targets): (Vec<f32>, Vec<f32>) = points.into_iter().unzip();
        let column = |values: Vec<f32>| Tensor::<1>::from_floats(values.as_slice(), device).unsqueeze_dim(1);
        Batch { inputs: column(inputs), targets: column(targets) }
    }
}

fn main() -> epl::Result<()> {
    let points: Vec<(f32, f32)> = (0..1000).map(|i| i as f32 / 500.0 - 1.0).map(|x| (x, (3.0 * x).sin())).collect();
    let config =
        Config::new().with("dist.data_parallel_size", 2)?.with("schedule.rate", 0.01)?.with("train.steps", 400)?;
    let losses = epl::launch(&config, |epl| {
        let net = |at: &Place| Net { body: LinearConfig::new(1, 32).init(at), head: LinearConfig::new(32, 1).init(at) };
        let sampler = ShuffledSampler::new(points.len(), 50, epl.config().train.seed)?;
        let data = TrainData::new(InMemDataset::new(points.clone()), Points, sampler)?;
        let trainer = Trainer::build(&epl, net, &AdamWConfig::new())?.with_settings(|run| run.with_log_every(100));
        let trained = trainer.fit(&data)?;
        Ok(trained.summary.last.map(|step| step.report.loss))
    })?;
    assert!(losses[0].is_some_and(|loss| loss < 0.01), "the sine was learned: {losses:?}");
    Ok(())
}
