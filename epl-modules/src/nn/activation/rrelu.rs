//! The randomised leaky ReLU, whose slopes do not depend on the layout.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Flag, Module, ModuleDisplay, Param};
use burn::tensor::{Tensor, activation};
use epl_core::model::precision::in_wide;

use crate::draws::Draws;
use crate::invalid::refuse;
use crate::nn::noise::here;
use crate::of_epl::OfEpl;
use crate::placement::NOTHING;

/// Configuration to create an [`RRelu`] layer using the [init function](RReluConfig::init).
#[derive(Config, Debug)]
pub struct RReluConfig {
    /// The least slope. Default: 1/8
    #[config(default = "0.125")]
    pub lower: f64,
    /// The largest slope. Default: 1/3
    #[config(default = "1.0 / 3.0")]
    pub upper: f64,
}

/// Burn's `RRelu`, whose slopes belong to samples as the masks of a [`Dropout`](crate::Dropout) do: see there what its input
/// may be, and when it is active. Otherwise the slope is the middle one.
///
/// ```
/// # use burn::tensor::Tensor;
/// use epl_core::{Pass, testing};
/// use epl_modules::nn::activation::RReluConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let rrelu = epl.place().enter(|_| RReluConfig::new().with_lower(0.25).with_upper(0.75).init());
///     let x = Tensor::<2>::full([2, 4], -1.0, epl.place().device());
///     assert_eq!(rrelu.forward(x.clone()).max().into_scalar::<f32>(), -0.5); // evaluation: the slope in the middle
///     // What an engine does before each forward.
///     epl.context().begin(Pass { step: 0, training: true, samples: [0, 1].into(), empty: false });
///     let drawn = rrelu.forward(x).into_data().to_vec::<f32>().unwrap();
///     assert!(drawn.iter().all(|y| (-0.75..=-0.25).contains(y)) && drawn[0] != drawn[1]);
/// #     Ok(())
/// });
/// ```
///
/// Should be created with [`RReluConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct RRelu {
    /// The least slope.
    pub lower: f64,
    /// The largest slope.
    pub upper: f64,
    /// Whether the layer may draw slopes; off when it is frozen.
    pub training: Param<Flag>,
    #[module(skip)]
    draws: Draws,
    of_epl: OfEpl,
}

impl RReluConfig {
    /// Initializes a new [`RRelu`] layer, at the place whose closure makes this part of the model.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the bounds are not finite, or not in order, and outside such a closure.
    pub fn init(&self) -> RRelu {
        let place = here("RRelu");
        let Self { lower, upper } = *self;
        if !(lower <= upper && (upper - lower).is_finite()) {
            refuse(format!(
                "{}: slopes from {lower} to {upper}: give finite bounds, the lower one first",
                place.path()
            ));
        }
        RRelu { lower, upper, training: Param::from_bool(true), draws: Draws::new("rrelu", &place), of_epl: OfEpl }
    }
}

impl RRelu {
    /// Multiplies what is below zero by a slope.
    ///
    /// # Shapes
    ///
    /// - input: `[samples, ...]`
    /// - output: `[samples, ...]`
    ///
    /// # Errors
    ///
    /// As [`Dropout::forward`](crate::Dropout::forward).
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let Self { lower, upper, .. } = *self;
        let elements = self.training.is_enabled().then(|| self.draws.next_elements(&input.dims(), 0, 0)).flatten();
        in_wide(input, |input| match elements {
            None => activation::leaky_relu(input, (lower + upper) / 2.0),
            Some(elements) => {
                let of = |row: crate::random::Row, element| lower + (upper - lower) * row.uniform(element);
                let slopes = elements.tensor(input.dims(), (&input.device(), input.dtype()), of);
                let below = input.clone().lower_scalar(0.0);
                input.clone().mask_where(below, input * slopes)
            }
        })
    }
}

impl ModuleDisplay for RRelu {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content.add("lower", &self.lower).add("upper", &self.upper).add("placement", NOTHING).optional()
    }
}
