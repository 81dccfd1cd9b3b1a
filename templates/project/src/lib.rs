//! A model, its data, and what every rank does.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor, activation::tanh};
use epl::data::{ShuffledSampler, TrainData};
use epl::prelude::*;

/// Inputs and targets, row by row.
pub type Batch = (Tensor<2>, Tensor<2>);

/// An ordinary Burn model.
#[derive(Module, Debug)]
pub struct Net {
    body: Linear,
    head: Linear,
}

impl Net {
    pub fn new(device: &Device) -> Self {
        Self { body: LinearConfig::new(1, 32).init(device), head: LinearConfig::new(32, 1).init(device) }
    }

    /// # Shapes
    ///
    /// - inputs, output: `[rows, 1]`
    pub fn forward(&self, inputs: Tensor<2>) -> Tensor<2> {
        self.head.forward(tanh(self.body.forward(inputs)))
    }

    /// The mean over the rows.
    pub fn loss(&self, (inputs, targets): &Batch) -> Tensor<1> {
        (self.forward(inputs.clone()) - targets.clone()).powi_scalar(2).mean()
    }
}

/// Points of a sine.
fn points() -> Vec<(f32, f32)> {
    (0..1000).map(|i| i as f32 / 500.0 - 1.0).map(|x| (x, (3.0 * x).sin())).collect()
}

#[derive(Clone)]
struct Points;

impl Batcher<(f32, f32), Batch> for Points {
    fn batch(&self, points: Vec<(f32, f32)>, device: &Device) -> Batch {
        let (inputs, targets): (Vec<f32>, Vec<f32>) = points.into_iter().unzip();
        let column = |values: Vec<f32>| Tensor::<1>::from_floats(values.as_slice(), device).unsqueeze_dim(1);
        (column(inputs), column(targets))
    }
}

/// Trains on this rank; the loss of the last step.
pub fn train(epl: &Epl) -> epl::Result<Option<f64>> {
    let run = &epl.config().train;
    let points = points();
    let sampler = ShuffledSampler::new(points.len(), run.global_batch_size.unwrap_or(50), run.seed)?;
    let data = TrainData::new(InMemDataset::new(points), Points, sampler)?;
    let trainer = Trainer::build(epl, |at| WithLoss::new(Net::new(at), Net::loss), &AdamWConfig::new())?;
    let trained = trainer.with_settings(|run| run.with_log_every(100)).fit(&data)?;
    Ok(trained.summary.last.map(|step| step.report.loss))
}
