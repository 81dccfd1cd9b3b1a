//! How a kernel moves over an image, and the first values of its weights.

use burn::module::Param;
use burn::nn::conv::Conv2d;
use burn::nn::{Initializer, PaddingConfig2d};
use burn::tensor::{DType, Device, Tensor};
use epl_core::Context;
use epl_core::model::precision::cast;
use epl_core::offload::is_host;

use super::on_host::conv2d;
use super::window::same_padding;
use crate::invalid::refuse;

/// The default of Burn's `Conv2d`: uniform with bound `1 / sqrt(fan_in)`.
pub(crate) fn default_initializer() -> Initializer {
    Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }
}

/// How a kernel moves, between which channels.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    /// In and out, over all ranks.
    pub channels: [usize; 2],
    pub kernel_size: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
    pub padding: PaddingConfig2d,
    pub context: Context,
}

impl Geometry {
    /// Refuses what no image fits.
    pub fn check(&self, path: &str) {
        check_kernel(path, [&self.kernel_size, &self.stride, &self.dilation]);
    }

    /// Fan-in and fan-out, as Burn counts them.
    pub fn fans(&self) -> (usize, usize) {
        let ([input, output], kernel) = (self.channels, self.kernel_size.iter().product::<usize>());
        (input / self.groups * kernel, output / self.groups * kernel)
    }

    /// The convolution, by products in host memory or as Burn's layer computes it; the result is in the type of the weight.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, channels_in, height, width]`
    /// - weight: `[channels_out, channels_in / groups, kernel, kernel]`, bias: `[channels_out]`
    /// - result: `[batch, channels_out, height, width]`, the sizes by stride and padding
    pub fn apply(&self, x: Tensor<4>, weight: &Param<Tensor<4>>, bias: Option<&Param<Tensor<1>>>) -> Tensor<4> {
        let dtype = weight.val().dtype();
        let inside = type_inside(dtype, &x.device());
        let layer = Conv2d {
            weight: Param::initialized(weight.id, cast(weight.val(), inside)),
            bias: bias.map(|bias| Param::initialized(bias.id, cast(bias.val(), inside))),
            stride: self.stride,
            kernel_size: self.kernel_size,
            dilation: self.dilation,
            groups: self.groups,
            padding: self.padding.clone(),
        };
        let y = cast(conv2d(&layer, cast(cast(x, dtype), inside)), dtype);
        // Each pixel of each output channel is a sum over a kernel.
        let [batch, _, height, width] = y.dims();
        let sums = (batch * height * width * self.channels[1]) as f64;
        self.context.count_flops(Some(weight.id), 2.0 * sums * self.fans().0 as f64);
        y
    }
}

/// The type in which a convolution of `dtype` is computed: in host memory f32 instead of 16 bits, whose sums are then rounded once.
pub(crate) fn type_inside(dtype: DType, device: &Device) -> DType {
    match dtype {
        DType::F16 | DType::BF16 if is_host(device) => DType::F32,
        _ => dtype,
    }
}

/// Refuses a kernel that no image fits.
pub(crate) fn check_kernel(path: &str, [kernel_size, stride, dilation]: [&[usize]; 3]) {
    let sizes = [("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)];
    if let Some((name, found)) = sizes.into_iter().find(|(_, size)| size.contains(&0)) {
        let dims = if found.len() == 1 { "" } else { " along each dim" };
        refuse(format!("{path}: a convolution's {name} is {found:?}; give it at least 1{dims}"));
    }
}

/// Refuses padding that is to keep the size, of a kernel that has no middle.
pub(crate) fn check_keeps_size(path: &str, kernel_size: &[usize]) {
    if kernel_size.iter().any(|size| size % 2 == 0) {
        refuse(format!(
            "{path}: padding of a kernel of {kernel_size:?} cannot keep the size; give it odd sizes, or another padding"
        ));
    }
}

/// Refuses padding that is to keep the size, divided by the stride, where one side would get more of it than the other. How
/// much a dim needs depends on its size, so that this is asked of each image.
pub(crate) fn check_same_on_both_sides(kernel_size: &[usize], stride: &[usize], image: &[usize]) {
    let dims = kernel_size.iter().zip(stride).zip(image);
    let padding: Vec<usize> = dims.map(|((kernel, stride), size)| same_padding(*size, *kernel, *stride)).collect();
    if padding.iter().any(|size| size % 2 == 1) {
        refuse(format!(
            "padding `Same` of a kernel of {kernel_size:?} with stride {stride:?} adds {padding:?} to an image of {image:?}, and \
             this layer adds the same on both sides: give it an image of other sizes, stride 1, or explicit padding"
        ));
    }
}

/// Refuses an input of other channels than the layer was made for.
pub(crate) fn check_channels<const D: usize>(expected: usize, input: [usize; D]) {
    if input[1] != expected {
        refuse(format!(
            "a convolution of {expected} input channels got an input of {input:?}, which has {}: give it {expected}, \
             or make the layer with {}",
            input[1], input[1]
        ));
    }
}
