//! A linear layer that every rank holds whole.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::{Context, Place};

use super::affine::{affine, count_affine};
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
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::ReplicatedLinearConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let linear = ReplicatedLinearConfig::new(8, 3).init(&epl.place().child("linear"));
///     assert_eq!(linear.weight.dims(), [8, 3]); // on both ranks
///     assert_eq!(linear.forward(Tensor::<3>::ones([4, 5, 8], epl.place().device())).dims(), [4, 5, 3]);
///     Ok(())
/// });
/// ```
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
