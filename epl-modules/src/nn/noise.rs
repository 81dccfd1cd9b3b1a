//! Gaussian noise that does not depend on the layout.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param};
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::in_wide;

use crate::draws::Draws;
use crate::invalid::refuse;
use crate::placement::NOTHING;
use crate::random::normal;

/// Configuration to create a [`GaussianNoise`] layer using the [init function](GaussianNoiseConfig::init).
#[derive(Config, Debug)]
pub struct GaussianNoiseConfig {
    /// The standard deviation of the noise.
    pub std: f64,
}

/// Burn's `GaussianNoise`, whose noise belongs to samples as the masks of a [`Dropout`](super::Dropout) do: see there what
/// its input may be, and when it is active.
///
/// Should be created with [`GaussianNoiseConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct GaussianNoise {
    /// The standard deviation of the noise.
    pub std: f64,
    /// Whether the layer may add noise; off when it is frozen.
    pub enabled: Param<Flag>,
    #[module(skip)]
    draws: Draws,
}

impl GaussianNoiseConfig {
    /// Initializes a new [`GaussianNoise`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the deviation is not finite or is below 0.
    pub fn init(&self, place: &Place) -> GaussianNoise {
        if !self.std.is_finite() || self.std < 0.0 {
            refuse(format!(
                "{}: noise of standard deviation {}: give a finite one, not below 0",
                place.path(),
                self.std
            ));
        }
        GaussianNoise { std: self.std, enabled: Param::from_bool(true), draws: Draws::new("gaussian noise", place) }
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
        if self.std == 0.0 || !self.enabled.is_enabled() {
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
