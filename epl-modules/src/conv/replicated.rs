//! A convolution that every rank holds whole.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::Tensor;
use epl_core::Place;

use super::geometry::{Geometry, check_channels, default_initializer};
use crate::invalid::refuse;
use crate::placement::REPLICATED;

/// Configuration to create a [`ReplicatedConv2d`] layer using the [init function](ReplicatedConv2dConfig::init).
#[derive(Config, Debug)]
pub struct ReplicatedConv2dConfig {
    /// The number of channels, in and out.
    pub channels: [usize; 2],
    /// The size of the kernel.
    pub kernel_size: [usize; 2],
    /// The stride of the convolution. Default: 1
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// Spacing between kernel elements. Default: 1
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// In how many groups channels are connected. Default: 1
    #[config(default = "1")]
    pub groups: usize,
    /// The padding. Default: none
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether a bias is added. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// How the parameters get their first values. Default: as Burn's `Conv2d`
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// Another initializer for the bias.
    pub bias_initializer: Option<Initializer>,
}

/// A 2D convolution whose parameters every rank holds whole: Burn's `Conv2d`, with its first values.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use burn::nn::PaddingConfig2d;
/// use epl_modules::ReplicatedConv2dConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let config = ReplicatedConv2dConfig::new([3, 8], [3, 3]).with_stride([2, 2]);
///     let conv = config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(&epl.place().child("conv"));
///     assert_eq!(conv.weight.dims(), [8, 3, 3, 3]); // on both ranks
///     assert_eq!(conv.forward(Tensor::ones([1, 3, 8, 8], epl.place().device())).dims(), [1, 8, 4, 4]);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`ReplicatedConv2dConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct ReplicatedConv2d {
    /// `[channels_out, channels_in / groups, kernel_size_1, kernel_size_2]`
    pub weight: Param<Tensor<4>>,
    /// `[channels_out]`
    pub bias: Option<Param<Tensor<1>>>,
    /// The number of channels, in and out.
    pub channels: [usize; 2],
    #[module(skip)]
    geometry: Geometry,
}

impl ReplicatedConv2dConfig {
    /// Initializes a new [`ReplicatedConv2d`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the groups do not divide the channels, or a size is 0.
    pub fn init(&self, place: &Place) -> ReplicatedConv2d {
        let ([input, output], groups) = (self.channels, self.groups);
        if groups == 0 || input % groups != 0 || output % groups != 0 {
            refuse(format!(
                "{}: {groups} groups do not divide {input} input and {output} output channels; give a number that \
                 divides both",
                place.path()
            ));
        }
        let geometry = Geometry {
            channels: self.channels,
            kernel_size: self.kernel_size,
            stride: self.stride,
            dilation: self.dilation,
            groups,
            padding: self.padding.clone(),
            context: place.context().clone(),
        };
        geometry.check(place.path());
        let (fans, [height, width]) = (geometry.fans(), self.kernel_size);
        let shape = [output, input / groups, height, width];
        let weight = place.split_param_with_fans(shape, &[], self.initializer.clone(), fans);
        let of_bias = self.bias_initializer.clone().unwrap_or_else(|| self.initializer.clone());
        let bias = || place.split_param_with_fans([output], &[], of_bias, fans);
        ReplicatedConv2d { weight, bias: self.bias.then(bias), channels: self.channels, geometry }
    }
}

impl ReplicatedConv2d {
    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, channels_in, height, width]`
    /// - output: `[batch, channels_out, height, width]`, the sizes by stride and padding
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the channels are others.
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        check_channels(self.channels[0], input.dims());
        self.geometry.apply(input, &self.weight, self.bias.as_ref())
    }
}

impl ModuleDisplay for ReplicatedConv2d {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add_debug_attribute("channels", &self.channels)
            .add_debug_attribute("kernel_size", &self.geometry.kernel_size)
            .add_debug_attribute("stride", &self.geometry.stride)
            .add_debug_attribute("dilation", &self.geometry.dilation)
            .add("groups", &self.geometry.groups)
            .add_debug_attribute("padding", &self.geometry.padding)
            .add("bias", &self.bias.is_some())
            .add("placement", REPLICATED)
            .optional()
    }
}
