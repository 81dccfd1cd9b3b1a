//! The loss as a layer: it chooses the path, in host memory or in tensor operations.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::Tensor;
use epl_comm::{Split, custom_vjp};
use epl_core::Context;
use epl_core::model::precision::{cast, widen};

use super::classes::Classes;
use super::targets::Targets;
use super::{rows, tensors};
use crate::host::{HostFloat, host_float};
use crate::invalid::refuse;

/// Configuration to create a [`SplitCrossEntropy`] loss using the [init function](SplitCrossEntropyConfig::init).
#[derive(Config, Debug)]
pub struct SplitCrossEntropyConfig {
    /// The share ε of a label that is spread evenly over all classes. Default: 0
    #[config(default = 0.0)]
    pub label_smoothing: f64,
    /// The target of a row that does not count. Default: -100, as in PyTorch and Hugging Face
    #[config(default = -100)]
    pub ignore_index: i64,
}

/// The cross-entropy of logits whose classes are split over the tensor axis.
///
/// It is the *sum* over the rows that count; the loss contract divides by their global number. Label smoothing and
/// the ignored index mean what they mean in PyTorch: the smoothed target is `(1 - ε) onehot + ε / classes`. So a class
/// whose logit is -∞ adds nothing, and has an infinite loss where it is the target or has a share of it.
///
/// A row of [`Targets`] may have two classes with a share each: its loss is that of either by their shares.
///
/// A target that is neither a class nor the ignored index is refused, by its row. In host memory that is before anything
/// is computed. Elsewhere reading the targets would wait for the device: there the loss and the row's gradient are NaN, and
/// the engine, which reads the loss in any case, then looks at the targets and refuses the step or the evaluation, also
/// under mixed precision; on pipeline stages, those of the stage that has the loss. In a loop of one's own a loss that is NaN must not be trained on.
///
/// ```
/// use burn::tensor::{Int, Tensor};
/// use epl_comm::sliced;
/// use epl_core::testing;
/// use epl_modules::SplitCrossEntropyConfig;
///
/// let losses = testing::run((1, 2, 1), |epl| {
///     let device = epl.place().device();
///     let logits = sliced(Tensor::<2>::zeros([3, 4], device), 1, epl.context().tensor());
///     let targets = Tensor::<1, Int>::from_ints([0, 3, -100], device); // the last row does not count
///     let sum = SplitCrossEntropyConfig::new().init(epl.context()).forward(logits, targets);
///     Ok(sum.into_scalar::<f32>() / 2.0)
/// });
/// assert!(losses.iter().all(|loss| (loss - 4_f32.ln()).abs() < 1e-5));
/// ```
///
/// Should be created with [`SplitCrossEntropyConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SplitCrossEntropy {
    /// The share of a label that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// The target of a row that does not count.
    pub ignore_index: i64,
    #[module(skip)]
    context: Context,
}

impl SplitCrossEntropyConfig {
    /// Initializes a new [`SplitCrossEntropy`] loss.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the label smoothing is not in `[0, 1]`.
    pub fn init(&self, context: &Context) -> SplitCrossEntropy {
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            refuse(format!("label smoothing {} is not in [0, 1]", self.label_smoothing));
        }
        SplitCrossEntropy {
            label_smoothing: self.label_smoothing,
            ignore_index: self.ignore_index,
            context: context.clone(),
        }
    }
}

impl SplitCrossEntropy {
    /// The sum of the rows' losses. Collective over the group of `logits`; every rank gets the same sum.
    ///
    /// # Shapes
    ///
    /// - logits: split along dim 1 of `[rows, classes]`
    /// - targets: `[rows]`, or [`Targets`], of two classes each with a share
    /// - output: `[1]`, in f32 at least
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a target is neither a class nor the ignored index (in host memory; elsewhere the loss is
    /// NaN, see above), a rank has no class, or a peer fails.
    pub fn forward(&self, logits: Split<2>, targets: impl Into<Targets>) -> Tensor<1> {
        self.sum(logits, targets.into(), host_float)
    }

    /// [`forward`](Self::forward), in host memory where `host` says so.
    fn sum(&self, logits: Split<2>, targets: Targets, host: impl Fn(&Tensor<2>) -> Option<HostFloat>) -> Tensor<1> {
        let classes = self.classes(&logits);
        let logits = logits.local();
        let [rows, local] = logits.dims();
        let other = targets.other_than(rows);
        if other.is_some() || local != classes.mine.len() {
            refuse(format!(
                "cross-entropy takes a target for every row of logits: got {rows} rows of {local} local classes and {} \
                 targets",
                other.unwrap_or(rows)
            ));
        }
        custom_vjp(
            (logits,),
            |(logits,)| {
                let (dtype, logits) = (logits.dtype(), widen(logits));
                let (loss, saved) = match host(&logits) {
                    Some(HostFloat::Single) => Saved::rows(rows::forward::<f32>(logits, targets, classes)),
                    Some(HostFloat::Double) => Saved::rows(rows::forward::<f64>(logits, targets, classes)),
                    None => {
                        let (looked_at, all) = (targets.clone().inner(), classes.clone());
                        self.context.explain_nan(move || all.look(looked_at));
                        Saved::tensors(tensors::forward(logits, targets, classes))
                    }
                };
                (loss, (saved, dtype))
            },
            |(saved, dtype), grad| (Some(cast(saved.backward(grad), dtype)),),
        )
    }

    /// The classes of these logits. Every rank has one: to the largest logit a rank without would add a zero.
    fn classes(&self, logits: &Split<2>) -> Classes {
        let (total, group) = (logits.size(), logits.group());
        if logits.dim() != 1 {
            refuse(format!("the classes of a cross-entropy are split along dim 1; got dim {}", logits.dim()));
        }
        if total < group.size() {
            refuse(format!(
                "a cross-entropy of {total} classes over the {} ranks of group `{}`, some of which hold none: split the \
                 classes over at most {total} ranks",
                group.size(),
                group.name()
            ));
        }
        Classes {
            total,
            mine: logits.range(),
            group: group.clone(),
            smoothing: self.label_smoothing,
            ignore_index: self.ignore_index,
        }
    }

    /// How many targets count: the weight of [`forward`](Self::forward)'s sum.
    pub fn weight(&self, targets: &[i64]) -> f64 {
        token_weight(targets, self.ignore_index)
    }
}

/// How many of these targets are not `ignore_index`.
pub fn token_weight(targets: &[i64], ignore_index: i64) -> f64 {
    targets.iter().filter(|target| **target != ignore_index).count() as f64
}

impl ModuleDisplay for SplitCrossEntropy {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("label_smoothing", &self.label_smoothing)
            .add("ignore_index", &self.ignore_index)
            .add("placement", "classes split over the tensor axis")
            .optional()
    }
}

/// What backward needs, by the path that forward took.
enum Saved {
    Rows(Box<rows::Saved>),
    Tensors(Box<tensors::Saved>),
}

impl Saved {
    fn rows((loss, saved): (Tensor<1>, rows::Saved)) -> (Tensor<1>, Self) {
        (loss, Self::Rows(Box::new(saved)))
    }

    fn tensors((loss, saved): (Tensor<1>, tensors::Saved)) -> (Tensor<1>, Self) {
        (loss, Self::Tensors(Box::new(saved)))
    }

    fn backward(self, grad: Tensor<1>) -> Tensor<2> {
        match self {
            Self::Rows(saved) if grad.dtype() == burn::tensor::DType::F64 => saved.backward::<f64>(grad),
            Self::Rows(saved) => saved.backward::<f32>(grad),
            Self::Tensors(saved) => saved.backward(grad),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Param;
    use burn::nn::Initializer;
    use burn::optim::AdamWConfig;
    use burn::tensor::Int;
    use epl_core::config::HalfDtype;
    use epl_core::{Engine, Loss, LossWeights, MicroBatch, Model, Place, launch, testing};

    use super::*;

    /// The same five logits for every row, and their loss in tensor operations, as on another device than the host.
    #[derive(Module, Debug)]
    struct Net {
        logits: Param<Tensor<1>>,
        criterion: SplitCrossEntropy,
    }

    impl Net {
        fn new(place: &Place) -> Self {
            let criterion = SplitCrossEntropyConfig::new().init(place.context());
            Self { logits: place.param([5], Initializer::Zeros), criterion }
        }
    }

    impl Model for Net {
        type Batch = Vec<i64>;
        type Carry = ();

        fn segments(&self) -> usize {
            1
        }

        fn weights(&self, targets: &Vec<i64>) -> LossWeights {
            LossWeights::new().with("loss", self.criterion.weight(targets))
        }

        fn forward_segment(&self, _: usize, _: Option<()>, _: &Self::Batch) {}

        fn loss(&self, (): (), targets: &Vec<i64>) -> Loss {
            let logits = self.logits.val().unsqueeze::<2>().expand([targets.len(), 5]);
            let ids = Tensor::<1, Int>::from_data(targets.as_slice(), &logits.device());
            let logits = Split::from_local(logits, 1, 5, self.criterion.context.tensor());
            Loss::new().with("loss", self.criterion.sum(logits, ids.into(), |_| None), 1.0)
        }
    }

    fn engine(epl: &epl_core::Epl) -> epl_core::Result<Engine<Net>> {
        Engine::build(epl, Net::new, &AdamWConfig::new())
    }

    fn batch(rank: u64, target: i64) -> MicroBatch<Vec<i64>> {
        MicroBatch::new(vec![0, target, -100], [3 * rank, 3 * rank + 1, 3 * rank + 2])
    }

    fn assert_refused<T>(outcome: epl_core::Result<T>) {
        let error = outcome.err().expect("there is no such class").to_string();
        assert!(error.contains("the target of row 1 is 5, but there are 5 classes"), "{error}");
    }

    /// A step and an evaluation in tensor operations name it; nothing is learned from it, nor is the step skipped.
    #[test]
    fn a_target_that_is_no_class_is_named() {
        let config = testing::config(1, 1, 1);
        for config in [config.clone(), testing::in_half(config, HalfDtype::F16)] {
            let ran = launch(&config, |epl| {
                let mut engine = engine(&epl)?;
                engine.step(vec![batch(0, 4)], 0.1)?;
                let before = engine.parameters()?;
                // Of two micro-batches the first may be the wrong one.
                for targets in [vec![5], vec![2, 5], vec![5, 2]] {
                    assert_refused(engine.step(targets.into_iter().map(|target| batch(0, target)).collect(), 0.1));
                }
                assert_refused(engine.evaluate([Ok(batch(0, 5))]));
                assert!(engine.parameters()? == before);
                assert!(engine.loss_scaler().is_none_or(|scaler| scaler.state().skipped == 0));
                let report = engine.step(vec![batch(0, 3)], 0.1)?;
                assert!(report.loss.is_finite() && !report.skipped && engine.steps() == 2);
                Ok(())
            });
            ran.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn a_rank_names_it_and_releases_the_others() {
        assert_refused(launch(&testing::config(2, 1, 1), |epl| {
            let rank = epl.context().data().rank() as u64;
            engine(&epl)?.step(vec![batch(rank, if rank == 1 { 5 } else { 1 })], 0.1)
        }));
    }
}
