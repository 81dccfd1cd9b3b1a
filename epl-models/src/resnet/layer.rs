//! A residual layer, basic or a bottleneck.

use burn::module::Module;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_modules::{Activation, residual};

use super::config::{REDUCTION, ResNetConfig, ResNetLayer};
use super::conv_norm::{ConvNorm, Window};

/// `relu(part(.. relu(part(x))) + shortcut(x))`.
#[derive(Module, Debug)]
pub struct ResidualLayer {
    /// Brings the input to the shape of the output, where they differ.
    pub shortcut: Option<ConvNorm>,
    /// The convolutions, in order, with a relu between them.
    pub parts: Vec<ConvNorm>,
}

impl ResidualLayer {
    /// Lays out a layer from so many channels to so many, which divides height and width by the stride.
    pub fn new(config: &ResNetConfig, [input, output]: [usize; 2], stride: usize, place: &Place) -> Self {
        let parts = match config.layer {
            ResNetLayer::Basic => vec![(input, output, 3, stride), (output, output, 3, 1)],
            ResNetLayer::Bottleneck => {
                let inside = output / REDUCTION;
                let (first, second) = if config.downsample_in_bottleneck { (stride, 1) } else { (1, stride) };
                vec![(input, inside, 1, first), (inside, inside, 3, second), (inside, output, 1, 1)]
            }
        };
        let part = |(index, (input, output, kernel, stride)): (usize, _)| {
            let window = Window { channels: [input, output], kernel, stride };
            ConvNorm::new(config, window, &place.child("parts").child(&index.to_string()))
        };
        let shortcut = || {
            let window = Window { channels: [input, output], kernel: 1, stride };
            ConvNorm::new(config, window, &place.child("shortcut"))
        };
        Self {
            shortcut: (input != output || stride != 1).then(shortcut),
            parts: parts.into_iter().enumerate().map(part).collect(),
        }
    }

    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - input: `[rows, input channels, height, width]`
    /// - output: `[rows, output channels, height, width]`, divided by the stride and rounded up
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let last = self.parts.len() - 1;
        let parts = |input| {
            let parts = self.parts.iter().enumerate();
            parts.fold(input, |hidden, (index, part)| match part.forward(hidden) {
                hidden if index < last => Activation::Relu.forward(hidden),
                hidden => hidden,
            })
        };
        Activation::Relu.forward(match &self.shortcut {
            Some(shortcut) => shortcut.forward(input.clone()) + parts(input),
            None => residual(input, parts),
        })
    }
}
