//! A convolution and the norm behind it.

use burn::module::{Module, Param};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::Tensor;
use epl_core::Place;
use epl_modules::{ReplicatedConv2d, ReplicatedConv2dConfig, SyncBatchNorm, SyncBatchNormConfig};

use super::config::ResNetConfig;

/// What a convolution of a ResNet looks like: square, without a bias, padded so that a stride of 1 keeps the size.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Channels of the input and of the output.
    pub channels: [usize; 2],
    /// Rows, and columns.
    pub kernel: usize,
    /// By how many pixels it moves.
    pub stride: usize,
}

/// A convolution and the norm behind it.
#[derive(Module, Debug)]
pub struct ConvNorm {
    /// The convolution.
    pub convolution: ReplicatedConv2d,
    /// The norm over the rows of all replicas, or of one.
    pub norm: SyncBatchNorm,
}

impl ConvNorm {
    /// Lays out both.
    pub fn new(config: &ResNetConfig, window: Window, place: &Place) -> Self {
        let Window { channels, kernel, stride } = window;
        let around = kernel / 2;
        let convolution = ReplicatedConv2dConfig::new(channels, [kernel; 2])
            .with_stride([stride; 2])
            .with_padding(PaddingConfig2d::Explicit(around, around, around, around))
            .with_bias(false)
            .with_initializer(Initializer::KaimingNormal { gain: 2f64.sqrt(), fan_out_only: true });
        let norm = SyncBatchNormConfig::new(channels[1])
            .with_epsilon(config.epsilon)
            .with_momentum(config.momentum)
            .with_statistics(config.statistics);
        let mut norm = norm.init(&place.child("norm"));
        if config.fixed_statistics {
            // Scale and shift are trained all the same.
            norm.training = Param::from_bool(false);
        }
        Self { convolution: convolution.init(&place.child("convolution")), norm }
    }

    /// Convolves and normalises. In training a collective over the data axis, unless the statistics are fixed.
    ///
    /// # Shapes
    ///
    /// - input: `[rows, channels, height, width]`
    /// - output: `[rows, channels, height, width]`, divided by the stride and rounded up
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.convolution.forward(input))
    }
}
