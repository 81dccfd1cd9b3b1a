//! From the features of an image to logits and their loss, whatever the model is.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{Bool, Int, Tensor};
use epl_comm::{Split, sliced};
use epl_core::{Context, Loss, LossWeights};
use epl_modules::{
    ReplicatedLinear, SplitClassifier, SplitCrossEntropy, SplitCrossEntropyConfig, SplitLinear, Targets, split_in_top_k,
};

use super::batch::ImageBatch;
use crate::rows::IGNORED;

/// The loss of the classes.
const CROSS_ENTROPY: &str = "cross_entropy";

/// The last layer of a classifier, for the rows of its own rank.
///
/// [`ReplicatedLinear`] for some classes; for so many that no rank is to hold all of them, [`SplitLinear`] over the
/// tensor axis, or [`SplitClassifier`] in a `split` scope. The first two have a parameter `weight` and one `bias`, so
/// that one takes the place of the other, with the same first values and under the same names.
///
/// ```
/// # use burn::tensor::{Int, Tensor};
/// use epl_core::{Config, launch};
/// use epl_modules::{ReplicatedLinearConfig, SplitCrossEntropyConfig};
/// use epl_models::vision::{ClassLayer, Labels};
///
/// launch(&Config::new().with("cluster.ranks", 2)?.with("dist.tensor_parallel_size", 2)?, |epl| {
///     let layer = ReplicatedLinearConfig::new(8, 4).with_bias(false).init(epl.place());
///     let (features, device) = (Tensor::zeros([3, 8], epl.place().device()), epl.place().device());
///     let criterion = SplitCrossEntropyConfig::new().init(epl.context());
///     let labels = Labels { targets: Tensor::<1, Int>::from_ints([0, 3, 1], device).into(), criterion: &criterion };
///     let sum = layer.loss(features, labels, epl.context()); // of three rows, for which four classes are alike likely
///     assert!((sum.into_scalar::<f32>() / 3.0 - 4_f32.ln()).abs() < 1e-5);
///     Ok(())
/// })?;
/// # Ok::<_, epl_core::Error>(())
/// ```
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
    /// - labels: of the same rows
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
    /// The class of every row, or two of them.
    pub targets: Targets,
    /// The loss.
    pub criterion: &'a SplitCrossEntropy,
}

/// The weight of the classes' loss: images that count.
pub(crate) fn class_weights(batch: &ImageBatch) -> LossWeights {
    LossWeights::new().with(CROSS_ENTROPY, batch.counted())
}

/// The loss of a batch's classes, of features `[rows, features]`; of mixed images that of either class by its share. A share of each
/// label is spread over all classes in training alone: it is a means of it, and what is evaluated is the likelihood. Collective over
/// the ranks that share the classes.
pub(crate) fn class_loss<C: ClassLayer>(
    layer: &C,
    features: Tensor<2>,
    batch: &ImageBatch,
    (label_smoothing, context): (f64, &Context),
) -> Loss {
    let smoothing = if context.is_training() { label_smoothing } else { 0.0 };
    let criterion =
        SplitCrossEntropyConfig::new().with_label_smoothing(smoothing).with_ignore_index(IGNORED).init(context);
    let labels = Labels { targets: batch.targets(), criterion: &criterion };
    Loss::new().with(CROSS_ENTROPY, layer.loss(features, labels, context), 1.0)
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
                labels.criterion.forward(self.parts(features, context), labels.targets)
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
        self.forward_loss_by(labels.criterion, features, labels.targets)
    }

    fn in_top_k(&self, features: Tensor<2>, labels: Tensor<1, Int>, k: usize, _context: &Context) -> Tensor<1, Bool> {
        self.in_top_k(features, labels, k)
    }
}
