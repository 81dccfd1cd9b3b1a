//! Convolutions of one, two and three dims.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, PaddingConfig1d, PaddingConfig2d, PaddingConfig3d};
use burn::tensor::Tensor;
use epl_core::Place;

use super::channels::{Channels, Extents};
use crate::conv::{check_keeps_size, check_same_on_both_sides, conv1d, conv2d, default_initializer};

/// Makes a convolution: the rank of its tensors, the type of its sizes, and what is a size of one.
macro_rules! convolution {
    (
        $layer:ident, $config:ident, $rank:tt, $size:tt, $one:tt, $padding:ident = $valid:tt,
        channels: { $($channels:tt)+ } = $both:expr, same_is_odd: $same_is_odd:tt, by: $forward:expr, $input:tt -> $output:tt
    ) => {
        #[doc = concat!("Configuration to create a [`", stringify!($layer), "`] layer using the")]
        #[doc = concat!("[init function](", stringify!($config), "::init).")]
        #[derive(Config, Debug)]
        pub struct $config {
            $($channels)+
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
            /// The padding. Default: none
            #[config(default = $valid)]
            pub padding: $padding,
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
            /// This rank's slice of `[channels_out, channels_in / groups, kernel_size...]`
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
            /// The padding.
            #[module(skip)]
            pub padding: $padding,
            #[module(skip)]
            channels: Channels,
        }

        impl $config {
            #[doc = concat!("Initializes a new [`", stringify!($layer), "`] layer.")]
            ///
            /// # Errors
            ///
            /// Unwinds with an error when the groups do not divide the channels, a size is 0, or the padding cannot keep
            /// the size.
            pub fn init(&self, place: &Place) -> $layer {
                let place = &place.self_contained();
                let sizes = [self.kernel_size.list(), self.stride.list(), self.dilation.list()];
                let both: fn(&Self) -> [usize; 2] = $both;
                let channels = Channels::new(place, both(self), self.groups, false, sizes);
                if $same_is_odd && self.padding == $padding::Same {
                    check_keeps_size(place.path(), sizes[0]);
                }
                let (weight, bias) = channels.parameters(place, sizes[0], self.bias, &self.initializer);
                $layer {
                    weight,
                    bias,
                    stride: self.stride,
                    kernel_size: self.kernel_size,
                    dilation: self.dilation,
                    groups: self.groups,
                    padding: self.padding.clone(),
                    channels,
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
            /// Unwinds with an error when the channels are others, the padding cannot keep the size, or a peer fails.
            pub fn forward(&self, input: Tensor<$rank>) -> Tensor<$rank> {
                if $same_is_odd && self.padding == $padding::Same {
                    check_same_on_both_sides(self.kernel_size.list(), self.stride.list(), &input.dims()[2..]);
                }
                let parameters = (&self.weight, self.bias.as_ref());
                self.channels.apply(input, parameters, |input, weight, bias, groups| {
                    let layer = burn::nn::conv::$layer {
                        weight,
                        bias,
                        stride: self.stride,
                        kernel_size: self.kernel_size,
                        dilation: self.dilation,
                        groups,
                        padding: self.padding.clone(),
                    };
                    $forward(&layer, input)
                })
            }
        }

        impl ModuleDisplay for $layer {
            fn custom_settings(&self) -> Option<DisplaySettings> {
                DisplaySettings::new().with_new_line_after_attribute(false).optional()
            }

            fn custom_content(&self, content: Content) -> Option<Content> {
                content
                    .add_debug_attribute("channels", &self.channels.sizes())
                    .add_debug_attribute("stride", &self.stride)
                    .add_debug_attribute("kernel_size", &self.kernel_size)
                    .add_debug_attribute("dilation", &self.dilation)
                    .add("groups", &self.groups)
                    .add_debug_attribute("padding", &self.padding)
                    .add("placement", self.channels.placement().as_str())
                    .optional()
            }
        }
    };
}

convolution!(
    Conv1d, Conv1dConfig, 3, usize, "1", PaddingConfig1d = "PaddingConfig1d::Valid",
    channels: {
        /// The number of input channels.
        pub channels_in: usize,
        /// The number of output channels.
        pub channels_out: usize,
    } = |config| [config.channels_in, config.channels_out],
    same_is_odd: false,
    by: conv1d,
    "[batch_size, channels_in, length_in]" -> "[batch_size, channels_out, length_out]"
);

convolution!(
    Conv2d, Conv2dConfig, 4, [usize; 2], "[1, 1]", PaddingConfig2d = "PaddingConfig2d::Valid",
    channels: {
        /// The number of channels, in and out.
        pub channels: [usize; 2],
    } = |config| config.channels,
    same_is_odd: false,
    by: conv2d,
    "[batch_size, channels_in, height_in, width_in]" -> "[batch_size, channels_out, height_out, width_out]"
);

convolution!(
    Conv3d, Conv3dConfig, 5, [usize; 3], "[1, 1, 1]", PaddingConfig3d = "PaddingConfig3d::Valid",
    channels: {
        /// The number of channels, in and out.
        pub channels: [usize; 2],
    } = |config| config.channels,
    same_is_odd: true,
    by: burn::nn::conv::Conv3d::forward,
    "[batch_size, channels_in, depth_in, height_in, width_in]" -> "[batch_size, channels_out, depth_out, height_out, width_out]"
);
