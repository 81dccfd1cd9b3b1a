//! What stands in the place of a norm.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::in_wide;

/// Scales and shifts each channel: `Y = α X + β`. No statistics are taken. Under mixed precision it computes in f32, as norms do.
#[derive(Module, Debug)]
pub struct Affine {
    /// The scale. Shape `[1, 1, d_model]`
    pub alpha: Param<Tensor<3>>,
    /// The shift. Shape `[1, 1, d_model]`
    pub beta: Param<Tensor<3>>,
}

impl Affine {
    /// Of so many channels; the scale starts at one, the shift at zero.
    pub fn new(d_model: usize, place: &Place) -> Self {
        let param = |initializer| place.full_precision(place.param([1, 1, d_model], initializer));
        Self { alpha: param(Initializer::Ones), beta: param(Initializer::Zeros) }
    }

    /// Applies it.
    ///
    /// # Shapes
    ///
    /// - input and output: `[rows, positions, d_model]`
    pub fn forward(&self, input: Tensor<3>) -> Tensor<3> {
        in_wide(input, |input| input * self.alpha.val() + self.beta.val())
    }
}
