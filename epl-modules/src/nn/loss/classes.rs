//! Losses of classes.

use burn::nn::loss::Reduction;
use burn::tensor::{Device, Int, Tensor};

configured! {
    /// Cross-entropy.
    ///
    CrossEntropyLoss, CrossEntropyLossConfig(device) {
        /// Targets that count for nothing, such as padding.
        #[config(default = "None")]
        pad_tokens: Option<Vec<usize>>,
        /// The weight of each class, above zero.
        #[config(default = "None")]
        weights: Option<Vec<f32>>,
        /// How much of the target all classes share, in `[0, 1]`.
        #[config(default = "None")]
        smoothing: Option<f32>,
        /// Whether it is given logits, or probabilities. Default: true
        #[config(default = true)]
        logits: bool,
    }
}

impl CrossEntropyLoss {
    /// Creates the loss with defaults, and a target that counts for nothing.
    pub fn new(pad_index: Option<usize>, device: &Device) -> Self {
        burn::nn::loss::CrossEntropyLoss::new(pad_index, device).into()
    }
}

raised! {
    CrossEntropyLoss:
    forward(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1>;
}

configured! {
    /// Binary cross-entropy.
    ///
    BinaryCrossEntropyLoss, BinaryCrossEntropyLossConfig(device) {
        /// The weight of each class, above zero.
        #[config(default = "None")]
        weights: Option<Vec<f32>>,
        /// How much of the target all classes share, in `[0, 1]`.
        #[config(default = "None")]
        smoothing: Option<f32>,
        /// Whether it is given logits, or probabilities. Default: false
        #[config(default = false)]
        logits: bool,
    }
}

raised! {
    BinaryCrossEntropyLoss:
    forward<const D>(logits: Tensor<D>, targets: Tensor<D, Int>) -> Tensor<1>;
}

configured! {
    /// The margin between the score of the right class and all others.
    ///
    MultiMarginLoss, MultiMarginLossConfig() {
        /// The margin. Default: 1
        #[config(default = 1.0)]
        margin: f64,
        /// The power of what is below the margin: 1 or 2. Default: 1
        #[config(default = 1)]
        p: i32,
    }
}

raised! {
    MultiMarginLoss:
    forward(input: Tensor<2>, target: Tensor<1, Int>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction(input: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1>;
}

plain! {
    /// Logistic loss of two classes, 1 and -1.
    SoftMarginLoss
}

raised! {
    SoftMarginLoss:
    forward<const D>(logits: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction<const D>(logits: Tensor<D>, targets: Tensor<D>) -> Tensor<D>;
}
