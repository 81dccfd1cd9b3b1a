//! A linear layer that every rank holds whole.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param, ParamId};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::model::precision::widen;
use epl_core::{Context, Place};

use crate::invalid::check_last_dim;
use crate::placement::REPLICATED;

/// The default of Burn's `Linear`: uniform with bound `1 / sqrt(d_input)`.
pub(crate) fn default_initializer() -> Initializer {
    Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false }
}

/// Configuration to create a [`ReplicatedLinear`] layer using the [init function](ReplicatedLinearConfig::init).
#[derive(Config, Debug)]
pub struct ReplicatedLinearConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    /// Whether a bias is added. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// How the parameters get their first values. Default: as Burn's `Linear`
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// Another initializer for the bias.
    pub bias_initializer: Option<Initializer>,
}

/// A linear layer whose parameters every rank holds whole.
///
/// `O = I W + b`, as Burn's `Linear`; the leading dims are flattened into one, so that the product and both its
/// gradients are products of two matrices.
///
/// Should be created with [`ReplicatedLinearConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct ReplicatedLinear {
    /// `[d_input, d_output]`
    pub weight: Param<Tensor<2>>,
    /// `[d_output]`
    pub bias: Option<Param<Tensor<1>>>,
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    #[module(skip)]
    context: Context,
}

impl ReplicatedLinearConfig {
    /// Initializes a new [`ReplicatedLinear`] layer.
    pub fn init(&self, place: &Place) -> ReplicatedLinear {
        let fans = (self.d_input, self.d_output);
        let weight = place.param([self.d_input, self.d_output], self.initializer.clone());
        let initializer = self.bias_initializer.as_ref().unwrap_or(&self.initializer);
        // The bias is drawn with its weight's fans, as in Burn.
        let bias = || place.split_param_with_fans([self.d_output], &[], initializer.clone(), fans);
        ReplicatedLinear {
            weight,
            bias: self.bias.then(bias),
            d_input: self.d_input,
            d_output: self.d_output,
            context: place.context().clone(),
        }
    }
}

impl ReplicatedLinear {
    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - input: `[..., d_input]`
    /// - output: `[..., d_output]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the last dim is another.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        check_last_dim("linear layer", ("d_input", self.d_input), input.dims());
        count_affine(&self.context, self.weight.id, input.dims(), self.d_output);
        affine(input, self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}

impl ModuleDisplay for ReplicatedLinear {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_input", &self.d_input)
            .add("d_output", &self.d_output)
            .add("bias", &self.bias.is_some())
            .add("placement", REPLICATED)
            .optional()
    }
}

/// x W + b along the last dim, as one product of two matrices, in the type of the weight. The layer has looked at the last
/// dim before.
///
/// # Shapes
///
/// - x: `[..., d_input]`, weight: `[d_input, d_output]`, bias: `[d_output]`
/// - output: `[..., d_output]`
pub(crate) fn affine<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let mut shape = x.dims();
    let [d_input, d_output] = weight.dims();
    let rows = shape[..D - 1].iter().product();
    shape[D - 1] = d_output;
    let y = shaped(x.cast(weight.dtype()), [rows, d_input]).matmul(weight);
    let y = match bias {
        Some(bias) => add_bias(y, bias.unsqueeze()),
        None => y,
    };
    shaped(y, shape)
}

/// A reshape, which is nothing in the graph where there is none to be made.
fn shaped<const A: usize, const B: usize>(x: Tensor<A>, shape: [usize; B]) -> Tensor<B> {
    if x.dims()[..] == shape[..] { Tensor::from_bridge(x.into_bridge()) } else { x.reshape(shape) }
}

/// `y + bias` in the type of y. A bias of another type, such as one that alone stays in f32 under mixed precision, is added in
/// f32 at least, and the sum is rounded.
pub(crate) fn add_bias<const D: usize>(y: Tensor<D>, bias: Tensor<D>) -> Tensor<D> {
    let dtype = y.dtype();
    if bias.dtype() == dtype {
        return y + bias;
    }
    let y = widen(y);
    let bias = bias.cast(y.dtype());
    (y + bias).cast(dtype)
}

/// Tells the operations of [`affine`], of all slices of the layer: `x` is the whole input's shape.
pub(crate) fn count_affine<const D: usize>(context: &Context, weight: ParamId, x: [usize; D], d_output: usize) {
    context.count_flops(Some(weight), 2.0 * x.iter().product::<usize>() as f64 * d_output as f64);
}
