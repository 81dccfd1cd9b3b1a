//! How the channels of a convolution lie on the tensor axis.
//!
//! Output channels are cut, and gathered after the product:
//!
//! ```text
//!              groups = 1                                groups divide over the ranks
//! X copied ─ X * W₀ ─> Y split ── all-gather ──> Y    X sliced ─ X₀ * W₀ ─> Y split ── all-gather ──> Y
//! ```
//!
//! Of several groups a rank takes some whole ones, with their input channels. Groups that do not divide over the ranks, and
//! fewer channels than ranks, are not cut: each rank computes all.

use burn::module::Param;
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_comm::{Split, copied, sliced};
use epl_core::model::precision::cast;
use epl_core::{Axis, Context, Place};

use crate::conv::{check_channels, check_kernel, type_inside};
use crate::invalid::refuse;
use crate::placement::{self, REPLICATED};

/// Sizes along the dims of an image.
pub(super) trait Extents {
    /// All of them.
    fn list(&self) -> &[usize];
}

impl Extents for usize {
    fn list(&self) -> &[usize] {
        core::slice::from_ref(self)
    }
}

impl<const N: usize> Extents for [usize; N] {
    fn list(&self) -> &[usize] {
        self
    }
}

/// What is done with the channels of one layer.
#[derive(Clone, Debug)]
pub(super) struct Channels {
    /// In and out, over all ranks.
    sizes: [usize; 2],
    groups: usize,
    /// The elements of a kernel.
    taps: usize,
    transposed: bool,
    division: Division,
    context: Context,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    Whole,
    Output,
    Groups,
}

impl Channels {
    /// Of a layer at a place, with its kernel's sizes, strides and dilations.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the groups do not divide the channels, or a size is 0.
    pub(super) fn new(
        place: &Place,
        sizes @ [input, output]: [usize; 2],
        groups: usize,
        transposed: bool,
        [kernel, stride, dilation]: [&[usize]; 3],
    ) -> Self {
        if groups == 0 || input % groups != 0 || output % groups != 0 {
            refuse(format!(
                "{}: {groups} groups do not divide {input} input and {output} output channels; give a number that \
                 divides both",
                place.path()
            ));
        }
        check_kernel(place.path(), [kernel, stride, dilation]);
        let ranks = place.context().tensor().size();
        let division = match groups {
            1 if output >= ranks => Division::Output,
            2.. if groups.is_multiple_of(ranks) => Division::Groups,
            _ => Division::Whole,
        };
        let taps = kernel.iter().product();
        Self { sizes, groups, taps, transposed, division, context: place.context().clone() }
    }

    /// Of two numbers, that of the input and that of the output channels, the one that the weight has first.
    fn ordered(&self, [input, output]: [usize; 2]) -> [usize; 2] {
        if self.transposed { [input, output] } else { [output, input] }
    }

    /// This rank's slices of weight and bias, which are drawn with the fans of the whole weight.
    pub(super) fn parameters<const D: usize>(
        &self,
        place: &Place,
        kernel: &[usize],
        has_bias: bool,
        initializer: &Initializer,
    ) -> (Param<Tensor<D>>, Option<Param<Tensor<1>>>) {
        let (shape, fans) = (self.shape(kernel), self.fans());
        let weight = place.split_param_with_fans(shape, self.cuts(), initializer.clone(), fans);
        let bias = || place.split_param_with_fans([self.sizes[1]], self.bias_cuts(), initializer.clone(), fans);
        (weight, has_bias.then(bias))
    }

    /// The shape of the whole weight.
    fn shape<const D: usize>(&self, kernel: &[usize]) -> [usize; D] {
        let [first, second] = self.ordered(self.sizes);
        let mut shape = [0; D];
        (shape[0], shape[1]) = (first, second / self.groups);
        shape[2..].copy_from_slice(kernel);
        shape
    }

    /// Fan-in and fan-out, as Burn counts them.
    fn fans(&self) -> (usize, usize) {
        let [output, input] = self.ordered(self.sizes);
        (input / self.groups * self.taps, output / self.groups * self.taps)
    }

    /// How the weight is cut.
    fn cuts(&self) -> &'static [(Axis, usize)] {
        match (self.division, self.transposed) {
            (Division::Whole, _) => &[],
            (Division::Output, true) => &[(Axis::Tensor, 1)],
            (Division::Output, false) | (Division::Groups, _) => &[(Axis::Tensor, 0)],
        }
    }

    /// How the bias is cut.
    fn bias_cuts(&self) -> &'static [(Axis, usize)] {
        if self.division == Division::Whole { &[] } else { &[(Axis::Tensor, 0)] }
    }

    /// The layer, which `conv` computes for this rank's channels and so many groups. In the type of the weight.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, channels_in, ...]`
    /// - result: `[batch, channels_out, ...]`
    pub(super) fn apply<const D: usize>(
        &self,
        input: Tensor<D>,
        (weight, bias): (&Param<Tensor<D>>, Option<&Param<Tensor<1>>>),
        conv: impl FnOnce(Tensor<D>, Param<Tensor<D>>, Option<Param<Tensor<1>>>, usize) -> Tensor<D>,
    ) -> Tensor<D> {
        let ([channels_in, channels_out], group, dims) = (self.sizes, self.context.tensor(), input.dims());
        check_channels(channels_in, dims);
        let (input, groups) = match self.division {
            Division::Whole => (input, self.groups),
            Division::Output => (copied(input, group).local(), 1),
            Division::Groups => (sliced(input, 1, group).local(), self.groups / group.size()),
        };
        let dtype = weight.val().dtype();
        let inside = type_inside(dtype, &input.device());
        let own = Param::initialized(weight.id, cast(weight.val(), inside));
        let own_bias = bias.map(|bias| Param::initialized(bias.id, cast(bias.val(), inside)));
        let output = cast(conv(cast(cast(input, dtype), inside), own, own_bias, groups), dtype);
        let pixels = if self.transposed { dims } else { output.dims() };
        let sums = pixels[0] * self.ordered(self.sizes)[0] * pixels[2..].iter().product::<usize>();
        self.context.count_flops(Some(weight.id), 2.0 * sums as f64 * self.fans().0 as f64);
        match self.division {
            Division::Whole => output,
            Division::Output | Division::Groups => Split::from_local(output, 1, channels_out, group).all_gather(),
        }
    }

    /// In and out, over all ranks.
    pub(super) fn sizes(&self) -> [usize; 2] {
        self.sizes
    }

    /// Where the parameters are.
    pub(super) fn placement(&self) -> String {
        match self.division {
            Division::Whole => REPLICATED.to_string(),
            Division::Output => placement::split(self.context.tensor(), "output channel", self.sizes[1]),
            Division::Groups => placement::split(self.context.tensor(), "group", self.groups),
        }
    }
}
