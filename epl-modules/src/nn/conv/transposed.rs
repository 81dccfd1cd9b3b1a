//! Transposed convolutions of one, two and three dims.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::Place;

use super::channels::{Channels, Extents};
use crate::conv::default_initializer;

/// Makes a transposed convolution: the rank of its tensors, the type of its sizes, and what are sizes of one and zero.
macro_rules! transposed {
    ($layer:ident, $config:ident, $rank:tt, $size:tt, $one:tt, $zero:tt, $input:tt -> $output:tt) => {
        #[doc = concat!("Configuration to create a [`", stringify!($layer), "`] layer using the")]
        #[doc = concat!("[init function](", stringify!($config), "::init).")]
        #[derive(Config, Debug)]
        pub struct $config {
            /// The number of channels, in and out.
            pub channels: [usize; 2],
            /// The size of the kernel.
            pub kernel_size: $size,
            /// The stride of the convolution. Default: 1
            #[config(default = $one)]
            pub stride: $size,
            /// Spacing between kernel elements. Default: 1
            #[config(default = $one)]
            pub dilation: $size,
            /// In how many groups channels are connected. Default: 1
            #[config(default = "1")]
            pub groups: usize,
            /// The padding of the convolution that this is the transpose of. Default: 0
            #[config(default = $zero)]
            pub padding: $size,
            /// What is added to the size of the output. Default: 0
            #[config(default = $zero)]
            pub padding_out: $size,
            /// Whether a bias is added. Default: true
            #[config(default = true)]
            pub bias: bool,
            /// How the parameters get their first values. Default: as Burn's
            #[config(default = "default_initializer()")]
            pub initializer: Initializer,
        }

        #[doc = concat!("Burn's `", stringify!($layer), "`, of which every rank of the tensor axis holds some output")]
        /// channels, or some groups. Inputs and outputs are whole; see [the module](super).
        ///
        #[doc = concat!("Should be created with [`", stringify!($config), "`].")]
        #[derive(Module, Debug)]
        #[module(custom_display)]
        pub struct $layer {
            /// This rank's slice of `[channels_in, channels_out / groups, kernel_size...]`
            pub weight: Param<Tensor<$rank>>,
            /// This rank's slice of `[channels_out]`
            pub bias: Option<Param<Tensor<1>>>,
            /// The stride of the convolution.
            pub stride: $size,
            /// The size of the kernel.
            pub kernel_size: $size,
            /// Spacing between kernel elements.
            pub dilation: $size,
            /// In how many groups channels are connected, over all ranks.
            pub groups: usize,
            /// The padding of the convolution that this is the transpose of.
            pub padding: $size,
            /// What is added to the size of the output.
            pub padding_out: $size,
            /// The number of channels, in and out, over all ranks.
            pub channels: [usize; 2],
            #[module(skip)]
            parts: Channels,
        }

        impl $config {
            #[doc = concat!("Initializes a new [`", stringify!($layer), "`] layer.")]
            ///
            /// # Errors
            ///
            /// Unwinds with an error when the groups do not divide the channels, or a size is 0.
            pub fn init(&self, place: &Place) -> $layer {
                let place = &place.self_contained();
                let sizes = [self.kernel_size.list(), self.stride.list(), self.dilation.list()];
                let parts = Channels::new(place, self.channels, self.groups, true, sizes);
                let (weight, bias) = parts.parameters(place, sizes[0], self.bias, &self.initializer);
                $layer {
                    weight,
                    bias,
                    stride: self.stride,
                    kernel_size: self.kernel_size,
                    dilation: self.dilation,
                    groups: self.groups,
                    padding: self.padding,
                    padding_out: self.padding_out,
                    channels: self.channels,
                    parts,
                }
            }
        }

        impl $layer {
            /// Applies the layer.
            ///
            /// # Shapes
            ///
            #[doc = concat!("- input: `", $input, "`")]
            #[doc = concat!("- output: `", $output, "`")]
            ///
            /// # Errors
            ///
            /// Unwinds with an error when the channels are others, or a peer fails.
            pub fn forward(&self, input: Tensor<$rank>) -> Tensor<$rank> {
                let parameters = (&self.weight, self.bias.as_ref());
                self.parts.apply(input, parameters, |input, weight, bias, groups| {
                    let layer = burn::nn::conv::$layer {
                        weight,
                        bias,
                        stride: self.stride,
                        kernel_size: self.kernel_size,
                        dilation: self.dilation,
                        groups,
                        padding: self.padding,
                        padding_out: self.padding_out,
                        channels: self.channels,
                    };
                    layer.forward(input)
                })
            }
        }

        impl ModuleDisplay for $layer {
            fn custom_settings(&self) -> Option<DisplaySettings> {
                DisplaySettings::new().with_new_line_after_attribute(false).optional()
            }

            fn custom_content(&self, content: Content) -> Option<Content> {
                content
                    .add_debug_attribute("channels", &self.channels)
                    .add_debug_attribute("stride", &self.stride)
                    .add_debug_attribute("kernel_size", &self.kernel_size)
                    .add_debug_attribute("dilation", &self.dilation)
                    .add("groups", &self.groups)
                    .add_debug_attribute("padding", &self.padding)
                    .add_debug_attribute("padding_out", &self.padding_out)
                    .add("placement", self.parts.placement().as_str())
                    .optional()
            }
        }
    };
}

transposed!(
    ConvTranspose1d, ConvTranspose1dConfig, 3, usize, "1", "0",
    "[batch_size, channels_in, length_in]" -> "[batch_size, channels_out, length_out]"
);

transposed!(
    ConvTranspose2d, ConvTranspose2dConfig, 4, [usize; 2], "[1, 1]", "[0, 0]",
    "[batch_size, channels_in, height_in, width_in]" -> "[batch_size, channels_out, height_out, width_out]"
);

transposed!(
    ConvTranspose3d, ConvTranspose3dConfig, 5, [usize; 3], "[1, 1, 1]", "[0, 0, 0]",
    "[batch_size, channels_in, depth_in, height_in, width_in]" -> "[batch_size, channels_out, depth_out, height_out, width_out]"
);
