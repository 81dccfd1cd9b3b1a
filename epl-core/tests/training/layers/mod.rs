//! A chain of square layers without biases, one layer a segment: what the tests of memory train.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use epl_core::{Chain, Place};

#[derive(Module, Debug)]
pub struct Net {
    layers: Vec<Linear>,
}

pub fn chain(layers: usize, width: usize, at: &Place) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let layer = || LinearConfig::new(width, width).with_bias(false).init(at);
    let mut links = Chain::of(Net { layers: (0..layers).map(|_| layer()).collect() })
        .first(&["layers.0"], |net: &Net, rows: &Tensor<2>| net.layers[0].forward(rows.clone()));
    for index in 1..layers {
        let field = format!("layers.{index}");
        links = links.then(&[&field], move |net, rows, _| net.layers[index].forward(rows));
    }
    links.mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}
