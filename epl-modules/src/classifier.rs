//! A class layer with its loss, whose classes are split.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::tensor::{Bool, Int, Tensor};
use epl_core::Place;

use crate::argmax::split_argmax;
use crate::bridge::{Bridge, Crossing};
use crate::cross_entropy::{MixedTargets, SplitCrossEntropy, SplitCrossEntropyConfig, Targets};
use crate::invalid::refuse;
use crate::linear::{SplitLinear, SplitLinearConfig, default_initializer};
use crate::top_k::split_in_top_k;

/// Configuration to create a [`SplitClassifier`] using the [init function](SplitClassifierConfig::init).
#[derive(Config, Debug)]
pub struct SplitClassifierConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The number of classes, over all ranks.
    pub classes: usize,
    /// Whether a bias is added to the logits. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// The share of a label that is spread evenly over all classes. Default: 0
    #[config(default = 0.0)]
    pub label_smoothing: f64,
    /// The target of a row that does not count. Default: -100
    #[config(default = -100)]
    pub ignore_index: i64,
    /// How the parameters get their first values. Default: as Burn's `Linear`
    #[config(default = "default_initializer()")]
    pub initializer: Initializer,
}

/// A linear layer over classes that are split, with the cross-entropy of its logits: large-scale classification.
///
/// Each rank holds some of the classes, and no rank ever the logits of all. It takes and gives the rows of its own rank:
/// in a `split` scope that is colocated with a replicated backbone, the rows of the ranks that share the classes are
/// gathered inside ([`Bridge`]). The loss is a sum over this rank's rows, as [`Loss::with`](epl_core::Loss::with) takes
/// it; a mean of it would be weighed by the rows that count, so divide by their number and give that as the weight.
///
/// ```
/// use burn::tensor::{Int, Tensor};
/// use epl_core::testing;
/// use epl_modules::SplitClassifierConfig;
///
/// testing::run((1, 2, 1), |epl| {
///     let classifier = SplitClassifierConfig::new(8, 1001).init(&epl.place().child("classifier"));
///     let features = Tensor::<2>::ones([3, 8], epl.place().device());
///     let targets = Tensor::<1, Int>::from_ints([0, 1000, -100], epl.place().device());
///     let sum = classifier.forward_loss(features.clone(), targets).into_scalar::<f32>();
///     assert!(sum.is_finite() && classifier.weight(&[0, 1000, -100]) == 2.0);
///     assert_eq!(classifier.predict(features).dims(), [3]);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`SplitClassifierConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SplitClassifier {
    /// `[d_input, classes]`, cut by columns.
    pub linear: SplitLinear,
    /// The loss.
    pub cross_entropy: SplitCrossEntropy,
    bridge: Bridge,
}

impl SplitClassifierConfig {
    /// Initializes a new [`SplitClassifier`].
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a rank would hold no class, or the label smoothing is not in `[0, 1]`.
    pub fn init(&self, place: &Place) -> SplitClassifier {
        let ranks = place.context().tensor().size();
        if self.classes < ranks {
            refuse(format!(
                "{}: {} classes cannot be split over {ranks} ranks, as some would hold none; use `split({})`, or fewer",
                place.path(),
                self.classes,
                self.classes
            ));
        }
        let linear = SplitLinearConfig::new(self.d_input, self.classes)
            .with_bias(self.bias)
            .with_initializer(self.initializer.clone());
        let cross_entropy = SplitCrossEntropyConfig::new()
            .with_label_smoothing(self.label_smoothing)
            .with_ignore_index(self.ignore_index);
        SplitClassifier {
            linear: place.behind_bridge(|place| linear.init(&place.child("linear"))),
            cross_entropy: cross_entropy.init(place.context()),
            bridge: Bridge::new(place),
        }
    }
}

impl SplitClassifier {
    /// The sum of the rows' losses, as a term of the loss. Its weight is [`weight`](Self::weight). Collective.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, d_input]`
    /// - targets: `[rows]`, or [`Targets`], of two classes each with a share
    /// - output: `[1]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a row has no target, a target is no class, or a peer fails.
    pub fn forward_loss(&self, features: Tensor<2>, targets: impl Into<Targets>) -> Tensor<1> {
        self.forward_loss_by(&self.cross_entropy, features, targets)
    }

    /// [`forward_loss`](Self::forward_loss) by another criterion.
    ///
    /// # Shapes
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn forward_loss_by(
        &self,
        criterion: &SplitCrossEntropy,
        features: Tensor<2>,
        targets: impl Into<Targets>,
    ) -> Tensor<1> {
        let targets = targets.into();
        let crossing = self.open(&features, &targets);
        let logits = self.linear.forward(crossing.gather(features));
        let mixed = targets.mixed.map(|mixed| MixedTargets {
            others: crossing.gather_values(mixed.others),
            shares: crossing.gather_values(mixed.shares),
        });
        let targets = Targets { classes: crossing.gather_values(targets.classes), mixed };
        crossing.count_once(criterion.forward(logits, targets))
    }

    /// The logits of all classes: as much memory as the split is to save. Collective.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, d_input]`
    /// - output: `[rows, classes]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a peer fails.
    pub fn logits(&self, features: Tensor<2>) -> Tensor<2> {
        let crossing = self.bridge.open(features.dims()[0]);
        crossing.own(self.linear.forward(crossing.gather(features)).all_gather())
    }

    /// The most likely class of every row; of equals, the lowest. Collective.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, d_input]`
    /// - output: `[rows]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a peer fails.
    pub fn predict(&self, features: Tensor<2>) -> Tensor<1, Int> {
        let crossing = self.bridge.open(features.dims()[0]);
        crossing.own_values(split_argmax(self.linear.forward(crossing.gather(features))))
    }

    /// Whether the target of a row is among its `k` most likely classes; see [`split_in_top_k`]. Collective.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, d_input]`
    /// - targets and output: `[rows]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a row has no target, there are fewer classes than `k`, or a peer fails.
    pub fn in_top_k(&self, features: Tensor<2>, targets: Tensor<1, Int>, k: usize) -> Tensor<1, Bool> {
        let crossing = self.open(&features, &targets.clone().into());
        let logits = self.linear.forward(crossing.gather(features));
        crossing.own_values(split_in_top_k(logits, crossing.gather_values(targets), k))
    }

    /// How many targets count: the weight of [`forward_loss`](Self::forward_loss).
    pub fn weight(&self, targets: &[i64]) -> f64 {
        self.cross_entropy.weight(targets)
    }

    /// The bridge, for rows with their targets.
    fn open(&self, features: &Tensor<2>, targets: &Targets) -> Crossing {
        let [rows, _] = features.dims();
        if let Some(given) = targets.other_than(rows) {
            refuse(format!("a classifier takes a target for every row: got {rows} rows and {given} targets"));
        }
        self.bridge.open(rows)
    }
}

impl ModuleDisplay for SplitClassifier {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content.add("linear", &self.linear).add("cross_entropy", &self.cross_entropy).optional()
    }
}
