//! The gated linear unit of Swish.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::Tensor;
use epl_comm::{Split, copied};
use epl_core::Place;

use crate::activation::Activation;
use crate::linear::default_initializer;
use crate::nn::linear::{Linear, LinearConfig};

/// Configuration to create a [`SwiGlu`] layer using the [init function](SwiGluConfig::init).
#[derive(Config, Debug)]
pub struct SwiGluConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the output features.
    pub d_output: usize,
    /// Whether the linear layers have a bias. Default: false
    #[config(default = false)]
    pub bias: bool,
    /// How the parameters get their first values. Default: as Burn's
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
    /// How a record of the module holds the weights. Default: row
    #[config(default = "LinearLayout::Row")]
    pub layout: LinearLayout,
}

/// Burn's `SwiGlu`, of which every rank of the tensor axis holds some columns.
///
/// `SwiGLU(x) = Swish(W_inner * x + b_inner) * (W_outer * x + b_outer)`. Inputs and outputs are whole, as a
/// [`Linear`](crate::nn::Linear)'s are; the product is gathered, once.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::SwiGluConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let swiglu = SwiGluConfig::new(8, 6).init(&epl.place().child("swiglu"));
///     assert_eq!(swiglu.linear_inner.weight.dims(), [8, 3]); // this rank's half of the columns
///     assert_eq!(swiglu.forward(Tensor::<3>::ones([2, 5, 8], epl.place().device())).dims(), [2, 5, 6]); // of all
///     Ok(())
/// });
/// ```
///
/// Should be created with [`SwiGluConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SwiGlu {
    /// The layer whose result is activated.
    pub linear_inner: Linear,
    /// The layer that multiplies it.
    pub linear_outer: Linear,
}

impl SwiGluConfig {
    /// Initializes a new [`SwiGlu`] layer.
    pub fn init(&self, place: &Place) -> SwiGlu {
        let place = &place.self_contained();
        let linear = LinearConfig::new(self.d_input, self.d_output)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone())
            .with_layout(self.layout);
        SwiGlu {
            linear_inner: linear.init(&place.child("linear_inner")),
            linear_outer: linear.init(&place.child("linear_outer")),
        }
    }
}

impl SwiGlu {
    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - input: `[..., d_input]`
    /// - output: `[..., d_output]`
    ///
    /// # Errors
    ///
    /// As [`Linear::forward`](crate::nn::Linear::forward).
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (inner, outer) = (&self.linear_inner, &self.linear_outer);
        if inner.cut().is_none() {
            let [inside, outside] = Linear::whole_each([inner, outer], input);
            return Activation::Silu.forward(inside) * outside;
        }
        let group = inner.context().tensor();
        let input = copied(input, group);
        let [inside, outside] = Linear::columns_each([inner, outer], input);
        let gated = Activation::Silu.forward(inside.local()) * outside.local();
        Split::from_local(gated, D - 1, inner.sizes()[1], group).all_gather()
    }
}

impl ModuleDisplay for SwiGlu {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_input, d_output] = self.linear_inner.sizes();
        content
            .add("d_input", &d_input)
            .add("d_output", &d_output)
            .add("bias", &self.linear_inner.bias.is_some())
            .add("placement", self.linear_inner.placement().as_str())
            .optional()
    }
}
