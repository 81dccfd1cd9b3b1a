//! The parametric ReLU.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::{Tensor, activation};
use epl_core::Place;

use crate::invalid::refuse;
use crate::placement::REPLICATED;

/// Configuration to create a [`PRelu`] layer using the [init function](PReluConfig::init).
#[derive(Config, Debug)]
pub struct PReluConfig {
    /// The number of slopes: one, or one a channel. Default: 1
    #[config(default = "1")]
    pub num_parameters: usize,
    /// The first value of the slopes. Default: 0.25
    #[config(default = "0.25")]
    pub alpha: f64,
}

/// Burn's `PRelu`, whole on every rank.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::PReluConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let prelu = PReluConfig::new().with_num_parameters(3).init(&epl.place().child("prelu")); // a slope a channel
///     let output = prelu.forward(Tensor::<3>::full([2, 3, 4], -2.0, epl.place().device()));
///     assert_eq!((output.dims(), output.max().into_scalar::<f32>()), ([2, 3, 4], -0.5)); // all slopes begin as 0.25
///     Ok(())
/// });
/// ```
///
/// Should be created with [`PReluConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct PRelu {
    /// The slopes below zero, `[num_parameters]`
    pub alpha: Param<Tensor<1>>,
    /// The first value of the slopes.
    pub alpha_value: f64,
    #[module(skip)]
    num_parameters: usize,
}

impl PReluConfig {
    /// Initializes a new [`PRelu`] layer.
    pub fn init(&self, place: &Place) -> PRelu {
        PRelu {
            alpha: place.param([self.num_parameters], Initializer::Constant { value: self.alpha }),
            alpha_value: self.alpha,
            num_parameters: self.num_parameters,
        }
    }
}

impl PRelu {
    /// Multiplies what is below zero by the slope. The result is in the type of the slopes.
    ///
    /// # Shapes
    ///
    /// - input: `[..., any]`; `[batch_size, num_parameters, ...]` where there are several slopes
    /// - output: as the input
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there are several slopes, and dim 1 is another.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (dims, slopes) = (input.dims(), self.num_parameters);
        if slopes != 1 && dims.get(1) != Some(&slopes) {
            refuse(format!(
                "a PReLU of num_parameters {slopes} got an input of {dims:?}: give it [batch, {slopes}, ...], or make it with \
                 1, or with the channels of its input"
            ));
        }
        let alpha = self.alpha.val();
        activation::prelu(input.cast(alpha.dtype()), alpha)
    }
}

impl ModuleDisplay for PRelu {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("num_parameters", &self.num_parameters)
            .add("alpha_value", &self.alpha_value)
            .add("placement", REPLICATED)
            .optional()
    }
}
