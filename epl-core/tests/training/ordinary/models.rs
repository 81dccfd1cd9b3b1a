//! Models of Burn's own layers, and their data.

use burn::module::Module;
use burn::nn::activation::{RRelu, RReluConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, GaussianNoise, GaussianNoiseConfig, Linear, LinearConfig, Lstm,
    LstmConfig,
};
use burn::tensor::{Device, Tensor, TensorData, activation};
use epl_core::{Chain, Place};

/// Images of convolutions, sequences of the others, and what is to be learnt of them.
pub type Batch<const D: usize> = (Tensor<D>, Tensor<2>);

/// A convolution with BatchNorm, a layer behind Dropout, a head.
#[derive(Module, Debug)]
pub struct Cnn {
    pub conv: Conv2d,
    pub norm: BatchNorm,
    pub drop: Dropout,
    pub hidden: Linear,
    pub head: Linear,
}

pub fn cnn(at: &Place) -> Chain<Cnn, Batch<4>, Tensor<2>> {
    let net = Cnn {
        conv: Conv2dConfig::new([1, 3], [3, 3]).init(at),
        norm: BatchNormConfig::new(3).init(at),
        drop: DropoutConfig::new(0.2).init(),
        hidden: LinearConfig::new(48, 16).init(at),
        head: LinearConfig::new(16, 2).init(at),
    };
    Chain::of(net)
        .first(&["conv", "norm"], |net: &Cnn, (images, _): &Batch<4>| {
            let [rows, ..] = images.dims();
            activation::relu(net.norm.forward(net.conv.forward(images.clone()))).reshape([rows as i32, -1])
        })
        .then(&["drop", "hidden"], |net, x, _| activation::relu(net.hidden.forward(net.drop.forward(x))))
        .then(&["head"], |net, x, _| net.head.forward(x))
        .mean_loss(|_, x, (_, targets)| (x - targets.clone()).powi_scalar(2).mean())
}

/// An LSTM, and a head behind layers that draw, which no segment names.
#[derive(Module, Debug)]
pub struct Recurrent {
    pub lstm: Lstm,
    pub noise: GaussianNoise,
    pub rrelu: RRelu,
    pub head: Linear,
}

pub fn recurrent(at: &Place) -> Chain<Recurrent, Batch<3>, Tensor<2>> {
    let net = Recurrent {
        lstm: LstmConfig::new(4, 8, true).init(at),
        noise: GaussianNoiseConfig::new(0.05).init(),
        rrelu: RReluConfig::new().init(),
        head: LinearConfig::new(8, 2).init(at),
    };
    Chain::of(net)
        .first(&["lstm"], |net: &Recurrent, (sequences, _): &Batch<3>| {
            let [rows, length, _] = sequences.dims();
            let (states, _) = net.lstm.forward(net.noise.forward(sequences.clone()), None);
            states.slice([0..rows, length - 1..length]).squeeze_dim::<2>(1)
        })
        .then(&["head"], |net, x, _| net.head.forward(net.rrelu.forward(x)))
        .mean_loss(|_, x, (_, targets)| (x - targets.clone()).powi_scalar(2).mean())
}

/// Dropout inside of layers that are not the user's own.
#[derive(Module, Debug)]
pub struct Encoder {
    pub encoder: TransformerEncoder,
    pub head: Linear,
}

pub fn encoder(at: &Place) -> Chain<Encoder, Batch<3>, Tensor<2>> {
    let net = Encoder {
        encoder: TransformerEncoderConfig::new(4, 8, 2, 2).with_dropout(0.1).init(at),
        head: LinearConfig::new(4, 2).init(at),
    };
    Chain::of(net)
        .first(&["encoder"], |net: &Encoder, (sequences, _): &Batch<3>| {
            // In 16 bits where the layer is.
            let sequences = sequences.clone().cast(net.encoder.layers[0].norm_1.gamma.val().dtype());
            net.encoder.forward(TransformerEncoderInput::new(sequences)).mean_dim(1).squeeze_dim::<2>(1)
        })
        .then(&["head"], |net, x, _| net.head.forward(x))
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
fn rows<const D: usize>(dims: [usize; D], step: u64, device: &Device) -> Batch<D> {
    let inputs = numbers(dims, step, device);
    let halves = inputs.clone().reshape([dims[0] as i32, 2, -1]).mean_dim(2).squeeze_dim::<2>(2);
    (inputs, halves * 2.0 + numbers([dims[0], 2], step + 1000, device) * 0.5)
}

pub fn images(rows_of_step: usize, step: u64, device: &Device) -> Batch<4> {
    rows([rows_of_step, 1, 6, 6], step, device)
}

pub fn sequences(rows_of_step: usize, step: u64, device: &Device) -> Batch<3> {
    rows([rows_of_step, 4, 4], step, device)
}
