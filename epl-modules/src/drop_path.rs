//! Stochastic depth.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::in_wide;

use crate::dropout::{Dropout, DropoutConfig};
use crate::placement::NOTHING;

/// Configuration to create a [`DropPath`] layer using the [init function](DropPathConfig::init).
#[derive(Config, Debug)]
pub struct DropPathConfig {
    /// The probability with which a sample is left out during training.
    pub prob: f64,
}

/// Leaves out whole samples of what a residual part adds, at random during training, and multiplies the others by
/// `1 / (1 - prob)`.
///
/// As in *Deep Networks with Stochastic Depth*, Huang et al., 2016 ([arXiv:1603.09382](https://arxiv.org/abs/1603.09382)). It
/// draws as a [`Dropout`] of one element a sample.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::{Pass, testing};
/// use epl_modules::DropPathConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let layer = DropPathConfig::new(0.5).init(&epl.place().child("layer"));
///     let x = Tensor::<3>::ones([8, 2, 3], epl.place().device());
///     assert_eq!(layer.forward(x.clone()).into_data(), x.clone().into_data()); // outside training
/// #     epl.context().begin(Pass { step: 0, training: true, samples: (0..8).collect(), empty: false });
///     let y = layer.forward(x).into_data().to_vec::<f32>().unwrap();
///     assert!(y.chunks(6).all(|sample| sample == [0.0; 6] || sample == [2.0; 6])); // a sample as a whole
///     Ok(())
/// });
/// ```
///
/// Should be created with [`DropPathConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct DropPath {
    /// Draws for a sample.
    pub samples: Dropout,
}

impl DropPathConfig {
    /// Initializes a new [`DropPath`] layer.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the probability is not in `[0, 1)`.
    pub fn init(&self, place: &Place) -> DropPath {
        DropPath { samples: DropoutConfig::new(self.prob).init(place) }
    }
}

impl DropPath {
    /// Leaves out samples.
    ///
    /// # Shapes
    ///
    /// - input, output: `[samples, ...]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when dim 0 is not the batch of the current pass.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let mut shape = [1; D];
        shape[0] = input.dims()[0];
        let Some(mask) = self.samples.mask(&shape, 0, 0) else { return input };
        let factors = mask.tensor(shape, &input.device());
        in_wide(input, |input| {
            let dtype = input.dtype();
            input * factors.cast(dtype)
        })
    }
}

impl ModuleDisplay for DropPath {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content.add("prob", &self.samples.prob).add("placement", NOTHING).optional()
    }
}
