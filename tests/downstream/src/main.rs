//! A crate that depends on `epl`, with a parallel module and an optimizer of its own, trained on two ranks.
//!
//! It exits with an error when two ranks do not compute what one does.

mod signed;
mod squared;

use burn::module::Module;
// Burn's derive for the state of an optimizer looks for these in the root of the crate.
#[allow(unused_imports)]
use burn::optim::{RecordState, StateSink, StateSource};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use epl::prelude::*;

use signed::SignedConfig;
use squared::Squared;

/// Rows and what they should give.
type Batch = (Tensor<2>, Tensor<2>);

#[derive(Module, Debug)]
struct Net {
    body: Linear,
    squared: Squared,
}

impl Net {
    fn new(place: &Place) -> Self {
        Self { body: LinearConfig::new(3, 7).init(place), squared: Squared::new(7, 5, &place.child("squared")) }
    }

    fn loss(&self, (inputs, targets): &Batch) -> Tensor<1> {
        let outputs = self.squared.forward(self.body.forward(inputs.clone()));
        (outputs - targets.clone()).powi_scalar(2).mean()
    }
}

fn batch(step: usize, device: &Device) -> Batch {
    let number = |at: usize| ((at * 7919 + step * 104_729) as f32 * 0.618_034).fract() - 0.5;
    let inputs: Vec<f32> = (0..12).map(number).collect();
    let targets: Vec<f32> = inputs.chunks(3).map(|row| row.iter().sum()).collect();
    let tensor = |values: Vec<f32>, columns| Tensor::from_data(TensorData::new(values, [4, columns]), device);
    (tensor(inputs, 3), tensor(targets, 1))
}

fn losses(data: usize, tensor: usize) -> epl::Result<Vec<f64>> {
    let config = Config::new().with("dist.data_parallel_size", data)?.with("dist.tensor_parallel_size", tensor)?;
    let mut losses = epl::launch(&config, |epl| {
        let mut net = Engine::build(&epl, |at| WithLoss::new(Net::new(at), Net::loss), &SignedConfig::new())?;
        (0..40).map(|step| Ok(net.train_batch(&batch(step, epl.place()), 0.003)?.loss)).collect::<epl::Result<Vec<_>>>()
    })?;
    Ok(losses.swap_remove(0))
}

fn main() -> epl::Result<()> {
    let alone = losses(1, 1)?;
    for (data, tensor) in [(2, 1), (1, 2)] {
        let together = losses(data, tensor)?;
        println!("data {data} x tensor {tensor}: loss {:.6} to {:.6}", together[0], together[39]);
        // The sign of a gradient near zero may differ in later steps.
        let equal = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b;
        if !together.iter().zip(&alone).take(3).all(equal) || together[39] > 0.5 * together[0] {
            return Err(Error::invalid(format!("two ranks differ from one: {together:?} is not {alone:?}")));
        }
    }
    Ok(())
}
