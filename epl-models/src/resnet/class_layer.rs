//! From features to logits.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;
use epl_comm::{Split, sliced};
use epl_core::Context;
use epl_modules::{ReplicatedLinear, SplitLinear};

/// The last layer of a classifier.
///
/// [`ReplicatedLinear`] for some classes; [`SplitLinear`] for so many that every rank of the tensor axis holds its
/// part of them. Both have a parameter `weight` and one `bias`, so that one takes the place of the other, with the
/// same first values and under the same names.
pub trait ClassLayer: Module + ModuleDisplay {
    /// The logits of this rank's classes. Collective over the tensor axis.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, features]`
    /// - output: split along dim 1 of `[rows, classes]`
    fn logits(&self, features: Tensor<2>, context: &Context) -> Split<2>;
}

impl ClassLayer for ReplicatedLinear {
    fn logits(&self, features: Tensor<2>, context: &Context) -> Split<2> {
        sliced(self.forward(features), 1, context.tensor())
    }
}

impl ClassLayer for SplitLinear {
    fn logits(&self, features: Tensor<2>, _context: &Context) -> Split<2> {
        self.forward(features)
    }
}
