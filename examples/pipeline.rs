//! A pipeline of two stages: an ordinary model, its parts in two scopes, cut into a chain of two segments.
//!
//! `cargo run --release --example pipeline`

use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::tanh;
use burn::{module::Module, tensor::Device, tensor::Tensor};
use epl::prelude::*;

/// Inputs and targets, one column each.
type Batch = (Tensor<2>, Tensor<2>);

#[derive(Module, Debug)]
struct Net {
    encoder: Linear,
    decoder: Linear,
}

impl Net {
    fn new(at: &Place) -> Self {
        Self {
            encoder: at.replicate(1, |at| LinearConfig::new(1, 32).init(at)), // the first stage
            decoder: at.replicate(1, |at| LinearConfig::new(32, 1).init(at)), // the second one
        }
    }
}

/// What every stage runs, and what goes from one to the other: the hidden rows.
fn chain(net: Net) -> Chain<Net, Batch, Tensor<2>> {
    Chain::of(net)
        .first(&["encoder"], |net: &Net, (inputs, _): &Batch| tanh(net.encoder.forward(inputs.clone())))
        .then(&["decoder"], |net, hidden, _| net.decoder.forward(hidden))
        .mean_loss(|_, outputs, (_, targets)| (outputs - targets.clone()).powi_scalar(2).mean())
}

/// Points of a sine.
fn batch(step: usize, device: &Device) -> Batch {
    let inputs: Vec<f32> = (0..40).map(|row| ((step * 40 + row) as f32 * 0.618_034).fract() * 2.0 - 1.0).collect();
    let inputs = Tensor::<1>::from_floats(inputs.as_slice(), device).unsqueeze_dim(1);
    (inputs.clone(), (inputs * 3.0).sin())
}

/// The losses of 300 steps, each of four micro-batches.
fn losses(ranks: usize, chain: impl Fn(&Place) -> Chain<Net, Batch, Tensor<2>> + Sync) -> epl::Result<Vec<f64>> {
    let config = Config::new().with("cluster.ranks", ranks)?.with("pipeline.num_micro_batch", 4)?;
    let mut losses = epl::launch(&config, |epl| {
        let mut engine = Engine::build(&epl, &chain, &AdamWConfig::new())?;
        if epl.context().world().rank() == 0 {
            println!("{}", engine.plan());
        }
        (0..300).map(|step| Ok(engine.train_batch(&batch(step, epl.place().device()), 0.01)?.loss)).collect()
    })?;
    Ok(losses.swap_remove(0))
}

fn main() -> epl::Result<()> {
    let pipeline = losses(2, |at| chain(Net::new(at)))?;
    let whole = losses(1, |at| {
        at.default_strategy(Strategy::replicate(1), |at| {
            chain(Net { encoder: LinearConfig::new(1, 32).init(at), decoder: LinearConfig::new(32, 1).init(at) })
        })
    })?;
    println!("step   two stages   one rank");
    for step in [0, 100, 200, 299] {
        println!("{step:4}   {:.8}   {:.8}", pipeline[step], whole[step]);
        assert!((pipeline[step] / whole[step] - 1.0).abs() < 1e-5, "stages do not change the loss");
    }
    Ok(())
}
