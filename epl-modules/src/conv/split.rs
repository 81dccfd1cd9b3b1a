//! A convolution split over the tensor axis, by output or by input channels.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::Tensor;
use epl_comm::{Copied, Partial, Split};
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Place};

use super::geometry::{Geometry, check_channels, default_initializer};
use crate::invalid::{check_group, refuse};
use crate::linear::{Operand, add_bias};
use crate::placement::{self, check_enough};

/// Which channels of the weight are cut.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum ChannelCut {
    /// The output channels: a replicated input gives an output that is split along dim 1.
    Output,
    /// The input channels: an input that is split along dim 1 gives a replicated output.
    Input,
}

impl ChannelCut {
    fn noun(self) -> &'static str {
        match self {
            Self::Output => "output channel",
            Self::Input => "input channel",
        }
    }
}

/// Configuration to create a [`SplitConv2d`] layer using the [init function](SplitConv2dConfig::init).
#[derive(Config, Debug)]
pub struct SplitConv2dConfig {
    /// The number of channels, in and out, over all ranks.
    pub channels: [usize; 2],
    /// The size of the kernel.
    pub kernel_size: [usize; 2],
    /// Which channels are cut. Default: output
    #[config(default = "ChannelCut::Output")]
    pub cut: ChannelCut,
    /// The stride of the convolution. Default: 1
    #[config(default = "[1, 1]")]
    pub stride: [usize; 2],
    /// Spacing between kernel elements. Default: 1
    #[config(default = "[1, 1]")]
    pub dilation: [usize; 2],
    /// In how many groups channels are connected. Only 1 can be split. Default: 1
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
}

/// A 2D convolution of which every rank of the tensor axis holds some channels.
///
/// Cut by output channels it turns a replicated (or [`Copied`]) image into a [`Split`] one; cut by input channels it
/// turns a `Split` image into a replicated one, with one all-reduce, after which the replicated bias is added once.
/// Channels that do not divide are cut by [`shard_range`](epl_comm::shard_range), as evenly as possible.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_core::testing;
/// use epl_modules::{ChannelCut, SplitConv2dConfig};
///
/// testing::run((1, 2, 1), |epl| {
///     let first = SplitConv2dConfig::new([3, 6], [3, 3]).init(&epl.place().child("first"));
///     let second = SplitConv2dConfig::new([6, 4], [1, 1]).with_cut(ChannelCut::Input).init(&epl.place().child("second"));
///     let hidden = first.forward(Tensor::<4>::ones([1, 3, 8, 8], epl.place().device())); // three of the six channels
///     assert_eq!(second.forward(hidden).dims(), [1, 4, 6, 6]);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`SplitConv2dConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SplitConv2d {
    /// This rank's slice of `[channels_out, channels_in, kernel_size_1, kernel_size_2]`
    pub weight: Param<Tensor<4>>,
    /// This rank's slice of `[channels_out]`; whole when the input channels are cut.
    pub bias: Option<Param<Tensor<1>>>,
    /// The number of channels, in and out, over all ranks.
    pub channels: [usize; 2],
    #[module(skip)]
    geometry: Geometry,
    #[module(skip)]
    cut: ChannelCut,
    #[module(skip)]
    context: Context,
}

impl SplitConv2dConfig {
    /// Initializes a new [`SplitConv2d`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a rank would hold no channel, there is more than one group, or a size is 0.
    pub fn init(&self, place: &Place) -> SplitConv2d {
        let (group, [input, output], [height, width]) = (place.context().tensor(), self.channels, self.kernel_size);
        if self.groups != 1 {
            refuse(format!(
                "{}: a convolution of {} groups cannot be split by channels; use 1 group, or ReplicatedConv2d",
                place.path(),
                self.groups
            ));
        }
        let geometry = Geometry {
            channels: self.channels,
            kernel_size: self.kernel_size,
            stride: self.stride,
            dilation: self.dilation,
            groups: 1,
            padding: self.padding.clone(),
            context: place.context().clone(),
        };
        geometry.check(place.path());
        let (dim, bias_cut): (_, &[_]) = match self.cut {
            ChannelCut::Output => (0, &[(Axis::Tensor, 0)]),
            ChannelCut::Input => (1, &[]),
        };
        let (shape, fans) = ([output, input, height, width], geometry.fans());
        check_enough(group, place.path(), self.cut.noun(), shape[dim]);
        let weight = place.split_param_with_fans(shape, &[(Axis::Tensor, dim)], self.initializer.clone(), fans);
        let bias = || place.split_param_with_fans([output], bias_cut, self.initializer.clone(), fans);
        SplitConv2d {
            weight,
            bias: self.bias.then(bias),
            channels: self.channels,
            geometry,
            cut: self.cut,
            context: place.context().clone(),
        }
    }
}

impl SplitConv2d {
    /// Applies the layer. The layout of the input decides that of the output; see [`SplitConvInput`].
    ///
    /// # Shapes
    ///
    /// - output cut: `Tensor` or `Copied` `[batch, channels_in, height, width]` to `Split` along dim 1 of
    ///   `[batch, channels_out, height, width]`
    /// - input cut: `Split` along dim 1 of `[batch, channels_in, height, width]` to `Tensor`
    ///   `[batch, channels_out, height, width]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the input's layout is not that of the cut, its channels are others, it is laid out
    /// over another axis, or a peer fails.
    pub fn forward<I: SplitConvInput>(&self, input: I) -> I::Output {
        input.feed(self)
    }

    fn by_output(&self, input: Operand<4>) -> Split<4> {
        if self.cut != ChannelCut::Output {
            refuse(
                "a convolution cut by input channels takes a Split tensor: slice a replicated one with `sliced`".into(),
            );
        }
        let group = self.context.tensor();
        let input = input.copied(group).local();
        check_channels(self.channels[0], input.dims());
        let local = self.geometry.apply(input, &self.weight, self.bias.as_ref());
        Split::from_local(local, 1, self.channels[1], group)
    }

    fn by_input(&self, input: Split<4>) -> Tensor<4> {
        if self.cut != ChannelCut::Input {
            refuse("a convolution cut by output channels takes a replicated tensor: gather a Split one first".into());
        }
        if input.dim() != 1 || input.size() != self.channels[0] {
            refuse(format!(
                "a convolution cut by input channels takes a tensor split along its channels, dim 1 of {}; got dim {} \
                 of {}",
                self.channels[0],
                input.dim(),
                input.size()
            ));
        }
        let group = self.context.tensor();
        check_group("split", input.group(), group);
        let local = self.geometry.apply(input.local(), &self.weight, None);
        let sum = Partial::from_local(local, group).all_reduce();
        match &self.bias {
            Some(bias) => add_bias(sum, bias.val().reshape([1, self.channels[1], 1, 1])),
            None => sum,
        }
    }
}

/// What a [`SplitConv2d`] can be fed with, and what it then gives.
pub trait SplitConvInput {
    /// The output for this input.
    type Output;

    /// Feeds the layer.
    fn feed(self, layer: &SplitConv2d) -> Self::Output;
}

impl SplitConvInput for Tensor<4> {
    type Output = Split<4>;

    fn feed(self, layer: &SplitConv2d) -> Split<4> {
        layer.by_output(self.into())
    }
}

impl SplitConvInput for Copied<4> {
    type Output = Split<4>;

    fn feed(self, layer: &SplitConv2d) -> Split<4> {
        layer.by_output(self.into())
    }
}

impl SplitConvInput for Operand<4> {
    type Output = Split<4>;

    fn feed(self, layer: &SplitConv2d) -> Split<4> {
        layer.by_output(self)
    }
}

impl SplitConvInput for Split<4> {
    type Output = Tensor<4>;

    fn feed(self, layer: &SplitConv2d) -> Tensor<4> {
        layer.by_input(self)
    }
}

impl ModuleDisplay for SplitConv2d {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let size = if self.cut == ChannelCut::Output { self.channels[1] } else { self.channels[0] };
        content
            .add_debug_attribute("channels", &self.channels)
            .add_debug_attribute("kernel_size", &self.geometry.kernel_size)
            .add_debug_attribute("stride", &self.geometry.stride)
            .add_debug_attribute("dilation", &self.geometry.dilation)
            .add_debug_attribute("padding", &self.geometry.padding)
            .add("bias", &self.bias.is_some())
            .add("placement", placement::split(self.context.tensor(), self.cut.noun(), size).as_str())
            .optional()
    }
}
