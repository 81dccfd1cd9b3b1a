//! From features to logits and their loss.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Bool, Int, Tensor};
use epl_comm::{Split, sliced};
use epl_core::Context;
use epl_modules::{ReplicatedLinear, SplitClassifier, SplitCrossEntropy, SplitLinear, split_in_top_k};

/// The last layer of a classifier, for the rows of its own rank.
///
/// [`ReplicatedLinear`] for some classes; for so many that no rank is to hold all of them, [`SplitLinear`] over the
/// tensor axis, or [`SplitClassifier`] in a `split` scope. The first two have a parameter `weight` and one `bias`, so
/// that one takes the place of the other, with the same first values and under the same names.
pub trait ClassLayer: Module + ModuleDisplay {
    /// The logits of all classes. Collective over the ranks that share the classes.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, features]`
    /// - output: `[rows, classes]`
    fn logits(&self, features: Tensor<2>, context: &Context) -> Tensor<2>;

    /// The sum of the rows' losses. Collective over the ranks that share the classes.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, features]`
    /// - labels: `[rows]`
    /// - output: `[1]`
    fn loss(&self, features: Tensor<2>, labels: Labels<'_>, context: &Context) -> Tensor<1>;

    /// Whether a row's label is among the `k` most likely classes. Collective over the ranks that share the classes.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, features]`
    /// - labels and output: `[rows]`
    fn in_top_k(&self, features: Tensor<2>, labels: Tensor<1, Int>, k: usize, context: &Context) -> Tensor<1, Bool>;
}

/// Labels, and how they are judged.
#[derive(Clone, Debug)]
pub struct Labels<'a> {
    /// The class of every row. Shape `[rows]`.
    pub classes: Tensor<1, Int>,
    /// The loss.
    pub criterion: &'a SplitCrossEntropy,
}

/// A layer that leaves each rank the logits of its classes, for the same rows.
trait Parts {
    fn parts(&self, features: Tensor<2>, context: &Context) -> Split<2>;
}

impl Parts for ReplicatedLinear {
    fn parts(&self, features: Tensor<2>, context: &Context) -> Split<2> {
        sliced(self.forward(features), 1, context.tensor())
    }
}

impl Parts for SplitLinear {
    fn parts(&self, features: Tensor<2>, _context: &Context) -> Split<2> {
        self.forward(features)
    }
}

macro_rules! class_layer_of_parts {
    ($($layer:ty),*) => {$(
        impl ClassLayer for $layer {
            fn logits(&self, features: Tensor<2>, context: &Context) -> Tensor<2> {
                self.parts(features, context).all_gather()
            }

            fn loss(&self, features: Tensor<2>, labels: Labels<'_>, context: &Context) -> Tensor<1> {
                labels.criterion.forward(self.parts(features, context), labels.classes)
            }

            fn in_top_k(
                &self,
                features: Tensor<2>,
                labels: Tensor<1, Int>,
                k: usize,
                context: &Context,
            ) -> Tensor<1, Bool> {
                split_in_top_k(self.parts(features, context), labels, k)
            }
        }
    )*};
}

class_layer_of_parts!(ReplicatedLinear, SplitLinear);

impl ClassLayer for SplitClassifier {
    fn logits(&self, features: Tensor<2>, _context: &Context) -> Tensor<2> {
        self.logits(features)
    }

    fn loss(&self, features: Tensor<2>, labels: Labels<'_>, _context: &Context) -> Tensor<1> {
        self.forward_loss_by(labels.criterion, features, labels.classes)
    }

    fn in_top_k(&self, features: Tensor<2>, labels: Tensor<1, Int>, k: usize, _context: &Context) -> Tensor<1, Bool> {
        self.in_top_k(features, labels, k)
    }
}
