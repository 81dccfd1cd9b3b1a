//! The deformable convolution, whole on every rank.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::conv::DeformConv2d as BurnDeformConv2d;
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::widen;

use crate::conv::{check_channels, check_keeps_size, check_kernel, check_same_on_both_sides, default_initializer};
use crate::invalid::refuse;
use crate::placement::REPLICATED;

/// Configuration to create a [`DeformConv2d`] layer using the [init function](DeformConv2dConfig::init).
#[derive(Config, Debug)]
pub struct DeformConv2dConfig {
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
    pub weight_groups: usize,
    /// How many groups of input channels have offsets of their own. Default: 1
    #[config(default = "1")]
    pub offset_groups: usize,
    /// The padding. Default: none
    #[config(default = "PaddingConfig2d::Valid")]
    pub padding: PaddingConfig2d,
    /// Whether a bias is added. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// How the parameters get their first values. Default: as Burn's
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
}

/// Burn's `DeformConv2d`, whole on every rank and computed in f32 at least.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::conv::DeformConv2dConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let layer = DeformConv2dConfig::new([2, 3], [3, 3]).init(&epl.place().child("layer"));
///     let x = Tensor::<4>::ones([1, 2, 8, 8], epl.place().device());
///     // For each of the nine elements of the kernel, at each of 6 × 6 places, by how much it is moved, and its weight.
///     let offset = Tensor::<4>::zeros([1, 2 * 9, 6, 6], epl.place().device());
///     let mask = Tensor::<4>::zeros([1, 9, 6, 6], epl.place().device());
///     assert_eq!(layer.forward(x.clone(), offset.clone(), None).dims(), [1, 3, 6, 6]);
///     let bias = layer.forward(x, offset, Some(mask)).narrow(2, 0, 1).narrow(3, 0, 1); // nothing else is left
///     assert_eq!(bias.reshape([3]).into_data(), layer.bias.as_ref().unwrap().val().into_data());
/// #     Ok(())
/// # });
/// ```
///
/// Should be created with [`DeformConv2dConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct DeformConv2d {
    /// `[channels_out, channels_in / groups, kernel_size_1, kernel_size_2]`
    pub weight: Param<Tensor<4>>,
    /// `[channels_out]`
    pub bias: Option<Param<Tensor<1>>>,
    /// The stride of the convolution.
    pub stride: [usize; 2],
    /// The size of the kernel.
    pub kernel_size: [usize; 2],
    /// Spacing between kernel elements.
    pub dilation: [usize; 2],
    /// In how many groups channels are connected.
    pub weight_groups: usize,
    /// How many groups of input channels have offsets of their own.
    pub offset_groups: usize,
    /// The padding.
    #[module(skip)]
    pub padding: PaddingConfig2d,
    #[module(skip)]
    channels: [usize; 2],
}

impl DeformConv2dConfig {
    /// Initializes a new [`DeformConv2d`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the groups do not divide the channels, a size is 0, or the padding is not the same on both
    /// sides.
    pub fn init(&self, place: &Place) -> DeformConv2d {
        let ([input, output], path) = (self.channels, place.path());
        let (groups, offset_groups) = (self.weight_groups, self.offset_groups);
        let divides = |groups: usize, channels: usize| groups > 0 && channels.is_multiple_of(groups);
        if !divides(groups, input) || !divides(groups, output) || !divides(offset_groups, input) {
            refuse(format!(
                "{path}: {groups} groups and {offset_groups} groups of offsets do not divide {input} input and {output} output \
                 channels; give numbers that divide them"
            ));
        }
        check_kernel(path, [&self.kernel_size, &self.stride, &self.dilation]);
        if self.padding == PaddingConfig2d::Same {
            check_keeps_size(path, &self.kernel_size);
        }
        if let PaddingConfig2d::Explicit(top, left, bottom, right) = self.padding
            && (top, left) != (bottom, right)
        {
            refuse(format!(
                "{path}: a deformable convolution pads both sides alike, and got {top} at the top, {bottom} at the bottom, {left} \
                 at the left and {right} at the right; give opposite sides the same, or pad the image before it"
            ));
        }
        let [height, width] = self.kernel_size;
        let fans = (input / groups * height * width, output / groups * height * width);
        let shape = [output, input / groups, height, width];
        let bias = || place.split_param_with_fans([output], &[], self.initializer.clone(), fans);
        DeformConv2d {
            weight: place.split_param_with_fans(shape, &[], self.initializer.clone(), fans),
            bias: self.bias.then(bias),
            stride: self.stride,
            kernel_size: self.kernel_size,
            dilation: self.dilation,
            weight_groups: groups,
            offset_groups,
            padding: self.padding.clone(),
            channels: self.channels,
        }
    }
}

impl DeformConv2d {
    /// Applies the layer. The result is in the type of the weight.
    ///
    /// # Shapes
    ///
    /// - input: `[batch_size, channels_in, height_in, width_in]`
    /// - offset: `[batch_size, 2 * offset_groups * kernel_height * kernel_width, height_out, width_out]`
    /// - mask: `[batch_size, offset_groups * kernel_height * kernel_width, height_out, width_out]`
    /// - output: `[batch_size, channels_out, height_out, width_out]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the channels are others, or the padding cannot keep the size.
    pub fn forward(&self, input: Tensor<4>, offset: Tensor<4>, mask: Option<Tensor<4>>) -> Tensor<4> {
        check_channels(self.channels[0], input.dims());
        if self.padding == PaddingConfig2d::Same {
            check_same_on_both_sides(&self.kernel_size, &self.stride, &input.dims()[2..]);
        }
        let (weight, dtype) = (widen(self.weight.val()), self.weight.val().dtype());
        let inside = weight.dtype();
        let layer = BurnDeformConv2d {
            weight: Param::initialized(self.weight.id, weight),
            bias: self.bias.as_ref().map(|bias| Param::initialized(bias.id, bias.val().cast(inside))),
            stride: self.stride,
            kernel_size: self.kernel_size,
            dilation: self.dilation,
            weight_groups: self.weight_groups,
            offset_groups: self.offset_groups,
            padding: self.padding.clone(),
        };
        let mask = mask.map(|mask| mask.cast(inside));
        layer.forward(input.cast(inside), offset.cast(inside), mask).cast(dtype)
    }
}

impl ModuleDisplay for DeformConv2d {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add_debug_attribute("channels", &self.channels)
            .add_debug_attribute("stride", &self.stride)
            .add_debug_attribute("kernel_size", &self.kernel_size)
            .add_debug_attribute("dilation", &self.dilation)
            .add("weight_groups", &self.weight_groups)
            .add("offset_groups", &self.offset_groups)
            .add_debug_attribute("padding", &self.padding)
            .add("placement", REPLICATED)
            .optional()
    }
}
