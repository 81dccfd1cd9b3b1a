//! Layers that draw, and whose constructors have no argument in Burn: dropout, and Gaussian noise that does not depend on the
//! layout.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param};
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::in_wide;

use crate::draws::Draws;
use crate::dropout::{self, Dropout};
use crate::invalid::refuse;
use crate::of_epl::OfEpl;
use crate::placement::NOTHING;
use crate::random::normal;

/// The place at which a layer is made whose constructor is given none: its draws are named by it.
pub(crate) fn here(layer: &str) -> Place {
    Place::current().unwrap_or_else(|| {
        refuse(format!(
            "{layer} draws by the place where it stands in its model, and is made in none: make it in the closure that \
             Epl::build, or Engine::build, is given, or in that of Place::enter"
        ))
    })
}

/// Configuration to create a [`Dropout`] layer using the [init function](DropoutConfig::init).
#[derive(Config, Debug)]
pub struct DropoutConfig {
    /// The probability with which an element becomes zero during training.
    pub prob: f64,
}

impl DropoutConfig {
    /// Initializes a new [`Dropout`] layer, at the place whose closure makes this part of the model.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the probability is not in `[0, 1)`, and outside such a closure.
    pub fn init(&self) -> Dropout {
        dropout::DropoutConfig::new(self.prob).init(&here("Dropout"))
    }
}

/// Configuration to create a [`GaussianNoise`] layer using the [init function](GaussianNoiseConfig::init).
#[derive(Config, Debug)]
pub struct GaussianNoiseConfig {
    /// The standard deviation of the noise.
    pub std: f64,
}

/// Burn's `GaussianNoise`, whose noise belongs to samples as the masks of a [`Dropout`](super::Dropout) do: see there what
/// its input may be, and when it is active.
///
/// ```
/// # use burn::tensor::Tensor;
/// use epl_core::{Pass, testing};
/// use epl_modules::nn::GaussianNoiseConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let layer = epl.place().enter(|_| GaussianNoiseConfig::new(0.1).init());
///     let noise = |samples: &[u64]| {
///         // What an engine does before each forward.
///         epl.context().begin(Pass { step: 0, training: true, samples: samples.into(), empty: false });
///         layer.forward(Tensor::<2>::zeros([samples.len(), 4], epl.place().device()))
///     };
///     // Sample 7 gets the same noise, whichever samples it is together with.
///     assert_eq!(noise(&[5, 7]).narrow(0, 1, 1).into_data(), noise(&[7]).into_data());
/// #     Ok(())
/// # });
/// ```
///
/// Should be created with [`GaussianNoiseConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct GaussianNoise {
    /// The standard deviation of the noise.
    pub std: f64,
    /// Whether the layer may add noise; off when it is frozen.
    pub training: Param<Flag>,
    #[module(skip)]
    draws: Draws,
    of_epl: OfEpl,
}

impl GaussianNoiseConfig {
    /// Initializes a new [`GaussianNoise`] layer, at the place whose closure makes this part of the model.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the deviation is not finite or is below 0, and outside such a closure.
    pub fn init(&self) -> GaussianNoise {
        let place = here("GaussianNoise");
        if !self.std.is_finite() || self.std < 0.0 {
            refuse(format!(
                "{}: noise of standard deviation {}: give a finite one, not below 0",
                place.path(),
                self.std
            ));
        }
        GaussianNoise {
            std: self.std,
            training: Param::from_bool(true),
            draws: Draws::new("gaussian noise", &place),
            of_epl: OfEpl,
        }
    }
}

impl GaussianNoise {
    /// Adds noise to the input during training.
    ///
    /// # Shapes
    ///
    /// - input: `[samples, ...]`
    /// - output: `[samples, ...]`
    ///
    /// # Errors
    ///
    /// As [`Dropout::forward`](super::Dropout::forward).
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        if self.std == 0.0 || !self.training.is_enabled() {
            return input;
        }
        let Some(elements) = self.draws.next_elements(&input.dims(), 0, 0) else { return input };
        in_wide(input, |input| {
            // Two numbers an element, of one row each.
            let of = |row: crate::random::Row, element| self.std * normal([row.at(0), row.at(1)], element);
            let noise = elements.tensor(input.dims(), (&input.device(), input.dtype()), of);
            input + noise
        })
    }
}

impl ModuleDisplay for GaussianNoise {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content.add("std", &self.std).add("placement", NOTHING).optional()
    }
}
