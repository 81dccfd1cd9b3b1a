//! A linear layer split over the tensor axis, by columns or by rows.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param, ParamId};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_comm::{Copied, Partial, Split};
use epl_core::topology::cluster::Axis;
use epl_core::{Context, Place};

use super::affine::{Weight, add_to_rows, affine, count_affine};
use super::each::affine_each;
use super::operand::Operand;
use super::replicated::default_initializer;
use crate::invalid::{check_group, check_last_dim, refuse};
use crate::placement::{self, check_enough};

/// Which dim of the weight is cut.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum LinearCut {
    /// `d_output` is cut: a replicated input gives an output that is split along its last dim.
    Column,
    /// `d_input` is cut: an input that is split along its last dim gives a replicated output.
    Row,
}

/// Configuration to create a [`SplitLinear`] layer using the [init function](SplitLinearConfig::init).
#[derive(Config, Debug)]
pub struct SplitLinearConfig {
    /// The size of the input features, over all ranks.
    pub d_input: usize,
    /// The size of the output features, over all ranks.
    pub d_output: usize,
    /// Which dim of the weight is cut. Default: column
    #[config(default = "LinearCut::Column")]
    pub cut: LinearCut,
    /// Whether a bias is added. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// How the parameters get their first values. Default: as Burn's `Linear`
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// Another initializer for the bias.
    pub bias_initializer: Option<Initializer>,
}

/// A linear layer of which every rank of the tensor axis holds a slice.
///
/// Cut by columns it turns a replicated (or [`Copied`]) tensor into a [`Split`] one; cut by rows it turns a `Split`
/// tensor into a replicated one, with one all-reduce. A row split's bias is replicated and added after the
/// reduction. Sizes that do not divide are cut by [`shard_range`](epl_comm::shard_range), as evenly as possible.
///
/// Two layers of one input; the example of [the crate](crate) has both cuts:
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_comm::copied;
/// # use epl_core::testing;
/// use epl_modules::SplitLinearConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let linear = |name: &str| SplitLinearConfig::new(8, 5).init(&epl.place().child(name));
///     let (gate, up) = (linear("gate"), linear("up"));
///     assert_eq!(gate.weight.dims(), [8, [3, 2][epl.context().tensor().rank()]]); // five columns on two ranks
///     // What both read is copied once: so its gradient is reduced once.
///     let x = copied(Tensor::<2>::ones([4, 8], epl.place().device()), epl.context().tensor());
///     let (gate, up) = (gate.forward(x.clone()), up.forward(x));
///     assert_eq!((gate.size(), up.all_gather().dims()), (5, [4, 5]));
/// #     Ok(())
/// });
/// ```
///
/// Should be created with [`SplitLinearConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SplitLinear {
    /// This rank's slice of `[d_input, d_output]`
    pub weight: Param<Tensor<2>>,
    /// This rank's slice of `[d_output]`; whole in a row split.
    pub bias: Option<Param<Tensor<1>>>,
    /// The size of the input features, over all ranks.
    pub d_input: usize,
    /// The size of the output features, over all ranks.
    pub d_output: usize,
    #[module(skip)]
    cut: LinearCut,
    #[module(skip)]
    context: Context,
}

impl SplitLinearConfig {
    /// Initializes a new [`SplitLinear`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a rank would hold no column, or no row.
    pub fn init(&self, place: &Place) -> SplitLinear {
        let group = place.context().tensor();
        let (dim, bias_cut): (_, &[_]) = match self.cut {
            LinearCut::Column => (1, &[(Axis::Tensor, 0)]),
            LinearCut::Row => (0, &[]),
        };
        let (shape, fans) = ([self.d_input, self.d_output], (self.d_input, self.d_output));
        check_enough(group, place.path(), self.cut.noun(), shape[dim]);
        let weight = place.split_param_with_fans(shape, &[(Axis::Tensor, dim)], self.initializer.clone(), fans);
        let initializer = self.bias_initializer.as_ref().unwrap_or(&self.initializer);
        let bias = || place.split_param_with_fans([self.d_output], bias_cut, initializer.clone(), fans);
        SplitLinear {
            weight,
            bias: self.bias.then(bias),
            d_input: self.d_input,
            d_output: self.d_output,
            cut: self.cut,
            context: place.context().clone(),
        }
    }
}

impl LinearCut {
    fn noun(self) -> &'static str {
        match self {
            Self::Column => "column",
            Self::Row => "row",
        }
    }
}

impl SplitLinear {
    /// Applies the layer. The layout of the input decides that of the output; see [`SplitInput`].
    ///
    /// # Shapes
    ///
    /// - column cut: `Tensor` or `Copied` `[..., d_input]` to `Split` along the last dim of `[..., d_output]`
    /// - row cut: `Split` along the last dim of `[..., d_input]` to `Tensor` `[..., d_output]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the input's layout is not that of the cut, its last dim is not `d_input`, it is
    /// laid out over another axis, or a peer fails.
    pub fn forward<I: SplitInput>(&self, input: I) -> I::Output {
        input.feed(self)
    }

    fn columns<const D: usize>(&self, input: Operand<D>) -> Split<D> {
        let [output] = Self::forward_each([self], input);
        output
    }

    /// Applies layers that are cut by columns, up to three, to one input.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub(crate) fn forward_each<const D: usize, const N: usize>(layers: [&Self; N], input: Operand<D>) -> [Split<D>; N] {
        let layers = layers.map(|layer| {
            if layer.cut != LinearCut::Column {
                refuse("a linear layer cut by rows takes a Split tensor: slice a replicated one with `sliced`".into());
            }
            (layer.parameters(), [layer.d_input, layer.d_output], &layer.context)
        });
        columns_each(input, layers)
    }

    fn rows<const D: usize>(&self, input: Split<D>) -> Tensor<D> {
        if self.cut != LinearCut::Row {
            refuse("a linear layer cut by columns takes a replicated tensor: gather a Split one first".into());
        }
        rows(input, self.parameters(), [self.d_input, self.d_output], &self.context)
    }

    fn parameters(&self) -> Parameters {
        let (weight, bias) = (self.weight.val(), self.bias.as_ref().map(Param::val));
        Parameters { id: self.weight.id, weight: weight.into(), bias }
    }
}

/// What a rank holds of a linear layer.
pub(crate) struct Parameters {
    /// That of the weight.
    pub(crate) id: ParamId,
    /// As it lies, or a slice
    pub(crate) weight: Weight,
    /// `[d_output]`, or a slice
    pub(crate) bias: Option<Tensor<1>>,
}

/// This rank's columns of `x W + b`, of which it holds those of `W` and `b`: of one layer, of two or of three, which lie on the same
/// ranks.
pub(crate) fn columns_each<const D: usize, const N: usize>(
    input: Operand<D>,
    layers: [(Parameters, [usize; 2], &Context); N],
) -> [Split<D>; N] {
    let group = layers[0].2.tensor();
    let input = input.copied(group).local();
    let sizes = layers.each_ref().map(|(Parameters { id, .. }, [d_input, d_output], context)| {
        check_last_dim("linear layer", ("d_input", *d_input), input.dims());
        count_affine(context, *id, input.dims(), *d_output);
        *d_output
    });
    let outputs = affine_each(input, layers.map(|(Parameters { weight, bias, .. }, ..)| (weight, bias)));
    let mut sizes = sizes.into_iter();
    outputs.map(|local| Split::from_local(local, D - 1, sizes.next().expect("one for each layer"), group))
}

/// `x W + b` of an input that is split along its last dim, of which this rank holds its rows of `W`, and `b` whole.
pub(crate) fn rows<const D: usize>(
    input: Split<D>,
    Parameters { id, weight, bias }: Parameters,
    [d_input, d_output]: [usize; 2],
    context: &Context,
) -> Tensor<D> {
    if input.dim() != D - 1 || input.size() != d_input {
        refuse(format!(
            "a linear layer cut by rows takes a tensor split along its last dim, {} of {d_input}; got dim {} of {}",
            D - 1,
            input.dim(),
            input.size()
        ));
    }
    check_group("split", input.group(), context.tensor());
    let input = input.local();
    let mut whole = input.dims();
    whole[D - 1] = d_input;
    count_affine(context, id, whole, d_output);
    if context.tensor().size() == 1 {
        // The whole sum is here, so that the bias can be added inside the product.
        return affine(input, weight, bias);
    }
    let sum = Partial::from_local(affine(input, weight, None), context.tensor()).all_reduce();
    match bias {
        Some(bias) => add_to_rows(sum, bias),
        None => sum,
    }
}

/// What a [`SplitLinear`] can be fed with, and what it then gives.
pub trait SplitInput {
    /// The output for this input.
    type Output;

    /// Feeds the layer.
    fn feed(self, layer: &SplitLinear) -> Self::Output;
}

impl<const D: usize> SplitInput for Tensor<D> {
    type Output = Split<D>;

    fn feed(self, layer: &SplitLinear) -> Split<D> {
        layer.columns(self.into())
    }
}

impl<const D: usize> SplitInput for Copied<D> {
    type Output = Split<D>;

    fn feed(self, layer: &SplitLinear) -> Split<D> {
        layer.columns(self.into())
    }
}

impl<const D: usize> SplitInput for Operand<D> {
    type Output = Split<D>;

    fn feed(self, layer: &SplitLinear) -> Split<D> {
        layer.columns(self)
    }
}

impl<const D: usize> SplitInput for Split<D> {
    type Output = Tensor<D>;

    fn feed(self, layer: &SplitLinear) -> Tensor<D> {
        layer.rows(self)
    }
}

impl ModuleDisplay for SplitLinear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let size = if self.cut == LinearCut::Column { self.d_output } else { self.d_input };
        content
            .add("d_input", &self.d_input)
            .add("d_output", &self.d_output)
            .add("bias", &self.bias.is_some())
            .add("placement", placement::split(self.context.tensor(), self.cut.noun(), size).as_str())
            .optional()
    }
}
