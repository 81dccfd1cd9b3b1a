//! The loss as a layer: it chooses the path, in host memory or in tensor operations.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::{Int, Tensor};
use epl_comm::{Split, custom_vjp};
use epl_core::precision::widen;

use super::classes::Classes;
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
/// the ignored index mean what they mean in PyTorch: the smoothed target is `(1 - ε) onehot + ε / classes`.
///
/// Should be created with [`SplitCrossEntropyConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct SplitCrossEntropy {
    /// The share of a label that is spread evenly over all classes.
    pub label_smoothing: f64,
    /// The target of a row that does not count.
    pub ignore_index: i64,
}

impl SplitCrossEntropyConfig {
    /// Initializes a new [`SplitCrossEntropy`] loss.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the label smoothing is not in `[0, 1]`.
    pub fn init(&self) -> SplitCrossEntropy {
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            refuse(format!("label smoothing {} is not in [0, 1]", self.label_smoothing));
        }
        SplitCrossEntropy { label_smoothing: self.label_smoothing, ignore_index: self.ignore_index }
    }
}

impl SplitCrossEntropy {
    /// The sum of the rows' losses. Collective over the group of `logits`; every rank gets the same sum.
    ///
    /// # Shapes
    ///
    /// - logits: split along dim 1 of `[rows, classes]`
    /// - targets: `[rows]`
    /// - output: `[1]`, in f32 at least
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a target is neither a class nor the ignored index (in host memory; elsewhere
    /// this is not checked), or a peer fails.
    pub fn forward(&self, logits: Split<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        if logits.dim() != 1 {
            refuse(format!("the classes of a cross-entropy are split along dim 1; got dim {}", logits.dim()));
        }
        let classes = Classes {
            total: logits.size(),
            mine: logits.range(),
            group: logits.group().clone(),
            smoothing: self.label_smoothing,
            ignore_index: self.ignore_index,
        };
        let logits = logits.local();
        let [rows, local] = logits.dims();
        if targets.dims() != [rows] || local != classes.mine.len() {
            refuse(format!(
                "cross-entropy takes a target for every row of logits: got {rows} rows of {local} local classes and {} \
                 targets",
                targets.dims()[0]
            ));
        }
        custom_vjp(
            (logits,),
            move |(logits,)| {
                let (dtype, logits) = (logits.dtype(), widen(logits));
                let (loss, saved) = match host_float(&logits) {
                    Some(HostFloat::Single) => Saved::rows(rows::forward::<f32>(logits, targets, classes)),
                    Some(HostFloat::Double) => Saved::rows(rows::forward::<f64>(logits, targets, classes)),
                    None => Saved::tensors(tensors::forward(logits, targets, classes)),
                };
                (loss, (saved, dtype))
            },
            |(saved, dtype), grad| (Some(saved.backward(grad).cast(dtype)),),
        )
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
