//! From an image to its features.

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;
use epl_core::Place;
use epl_modules::Activation;

use super::config::ResNetConfig;
use super::conv_norm::{ConvNorm, Window};
use super::layer::ResidualLayer;

/// Residual layers of one width; the first one may halve height and width.
#[derive(Module, Debug)]
pub struct Stage {
    /// The layers, in order.
    pub layers: Vec<ResidualLayer>,
}

/// The stem and the stages.
#[derive(Module, Debug)]
pub struct Backbone {
    /// The first convolution.
    pub stem: ConvNorm,
    /// The stages, in order.
    pub stages: Vec<Stage>,
}

impl Stage {
    fn new(config: &ResNetConfig, index: usize, place: &Place) -> Self {
        let input = index.checked_sub(1).map_or(config.embedding_size, |previous| config.hidden_sizes[previous]);
        let output = config.hidden_sizes[index];
        let stride = if index > 0 || config.downsample_in_first_stage { 2 } else { 1 };
        let layer = |number: usize| {
            let (input, stride) = if number == 0 { (input, stride) } else { (output, 1) };
            ResidualLayer::new(config, [input, output], stride, &place.child("layers").child(&number.to_string()))
        };
        Self { layers: (0..config.depths[index]).map(layer).collect() }
    }

    /// Applies the layers.
    ///
    /// # Shapes
    ///
    /// - input: `[rows, input channels, height, width]`
    /// - output: `[rows, output channels, height, width]`, divided by the stride and rounded up
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        self.layers.iter().fold(input, |hidden, layer| layer.forward(hidden))
    }
}

impl Backbone {
    /// Lays out the stem and the stages; the configuration was validated before.
    pub(super) fn new(config: &ResNetConfig, place: &Place) -> Self {
        let stem = Window { channels: [config.channels, config.embedding_size], kernel: 7, stride: 2 };
        let stage = |index: usize| Stage::new(config, index, &place.child("stages").child(&index.to_string()));
        Self {
            stem: ConvNorm::new(config, stem, &place.child("stem")),
            stages: (0..config.depths.len()).map(stage).collect(),
        }
    }

    /// The stem: height and width are a quarter of the image's.
    ///
    /// # Shapes
    ///
    /// - pixels: `[rows, channels, height, width]`
    /// - output: `[rows, embedding size, height / 4, width / 4]`, rounded up
    pub fn enter(&self, pixels: Tensor<4>) -> Tensor<4> {
        let hidden = Activation::Relu.forward(self.stem.forward(pixels));
        max_pool2d(hidden, MaxPoolOptions::new([3, 3]).with_stride([2, 2]).with_padding([1, 1]))
    }

    /// The average over the image.
    ///
    /// # Shapes
    ///
    /// - hidden: `[rows, channels, height, width]`
    /// - output: `[rows, channels, 1, 1]`
    pub fn leave(&self, hidden: Tensor<4>) -> Tensor<4> {
        let [rows, channels, height, width] = hidden.dims();
        hidden.reshape([rows, channels, height * width]).mean_dim(2).reshape([rows, channels, 1, 1])
    }

    /// The features of images.
    ///
    /// # Shapes
    ///
    /// - pixels: `[rows, channels, height, width]`
    /// - output: `[rows, features]`
    pub fn forward(&self, pixels: Tensor<4>) -> Tensor<2> {
        let hidden = self.stages.iter().fold(self.enter(pixels), |hidden, stage| stage.forward(hidden));
        self.leave(hidden).flatten(1, 3)
    }
}
