//! Models that draw, beside the programs of the example: by layers of Burn, and by themselves.

use burn::module::{Flag, Module, Param};
use burn::nn::activation::{RRelu, RReluConfig};
use burn::nn::{GaussianNoise, GaussianNoiseConfig, Linear, LinearConfig, Lstm, LstmConfig};
use burn::tensor::{Device, Distribution, Tensor, TensorData, activation};
use epl_core::{Chain, Place};

/// Sequences, and what is to be learnt of them.
pub type Batch = (Tensor<3>, Tensor<2>);

/// An LSTM, and a head behind layers that draw, which no segment names.
#[derive(Module, Debug)]
pub struct Recurrent {
    pub lstm: Lstm,
    pub noise: GaussianNoise,
    pub rrelu: RRelu,
    pub head: Linear,
}

pub fn recurrent(at: &Place) -> Chain<Recurrent, Batch, Tensor<2>> {
    let net = Recurrent {
        lstm: LstmConfig::new(4, 8, true).init(at),
        noise: GaussianNoiseConfig::new(0.05).init(),
        rrelu: RReluConfig::new().init(),
        head: LinearConfig::new(8, 2).init(at),
    };
    Chain::of(net)
        .first(&["lstm"], |net: &Recurrent, (sequences, _): &Batch| {
            let [rows, length, _] = sequences.dims();
            let (states, _) = net.lstm.forward(net.noise.forward(sequences.clone()), None);
            states.slice([0..rows, length - 1..length]).squeeze_dim::<2>(1)
        })
        .then(&["head"], |net, x, _| net.head.forward(net.rrelu.forward(x)))
        .mean_loss(|_, x, (_, targets)| (x - targets.clone()).powi_scalar(2).mean())
}

/// Two layers, of which rows of what is added to the first's are left out: a layer that nobody knows, as a user writes it.
#[derive(Module, Debug)]
pub struct Dropping {
    pub first: Linear,
    pub added: Linear,
    pub head: Linear,
    pub training: Param<Flag>,
}

impl Dropping {
    fn some_rows(&self, x: Tensor<2>) -> Tensor<2> {
        if !self.training.is_enabled() {
            return x * 0.5;
        }
        let rows = x.dims()[0];
        let kept = Tensor::<2>::random([rows, 1], Distribution::Bernoulli(0.5), &x.device());
        x.clone() * kept.cast(x.dtype())
    }
}

pub fn dropping(at: &Place) -> Chain<Dropping, Batch, Tensor<2>> {
    let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(at);
    let net = Dropping { first: layer(16, 8), added: layer(8, 8), head: layer(8, 2), training: Param::from_bool(true) };
    Chain::of(net)
        .first(&["first"], |net: &Dropping, (sequences, _): &Batch| {
            let rows = sequences.dims()[0];
            activation::tanh(net.first.forward(sequences.clone().reshape([rows, 16])))
        })
        .then(&["added", "head"], |net, x: Tensor<2>, _| {
            net.head.forward(x.clone() + net.some_rows(activation::tanh(net.added.forward(x))))
        })
        .mean_loss(|_, x, (_, targets)| (x - targets.clone()).powi_scalar(2).mean())
}

/// Numbers between -1 and 1, which no generator makes.
fn numbers<const D: usize>(dims: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    let number = |index: u64| {
        let x = (index + seed * 7919 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let len = dims.iter().product::<usize>() as u64;
    Tensor::from_data(TensorData::new((0..len).map(number).collect::<Vec<_>>(), dims), device)
}

/// The rows of a step, and means over parts of each as its targets, of which a part cannot be learnt.
pub fn sequences(rows: usize, step: u64, device: &Device) -> Batch {
    let inputs = numbers([rows, 4, 4], step, device);
    let halves = inputs.clone().reshape([rows as i32, 2, -1]).mean_dim(2).squeeze_dim::<2>(2);
    (inputs, halves * 2.0 + numbers([rows, 2], step + 1000, device) * 0.5)
}
