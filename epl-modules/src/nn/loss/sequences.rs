//! Losses of sequences that are not aligned.

use burn::nn::loss::Reduction;
use burn::tensor::{Int, Tensor};

configured! {
    /// Connectionist temporal classification, of log-probabilities.
    ///
    CTCLoss, CTCLossConfig() {
        /// The class of no label. Default: 0
        #[config(default = 0)]
        blank: usize,
        /// Whether the loss of targets that do not fit is zero. Default: false
        #[config(default = false)]
        zero_infinity: bool,
    }
}

raised! {
    CTCLoss:
    forward(
        log_probs: Tensor<3>, targets: Tensor<2, Int>, input_lengths: Tensor<1, Int>, target_lengths: Tensor<1, Int>
    ) -> Tensor<1>;
    forward_with_reduction(
        log_probs: Tensor<3>, targets: Tensor<2, Int>, input_lengths: Tensor<1, Int>, target_lengths: Tensor<1, Int>,
        reduction: Reduction
    ) -> Tensor<1>;
}

configured! {
    /// The loss of RNN transducers.
    ///
    RNNTLoss, RNNTLossConfig() {
        /// The class of no label. Default: 0
        #[config(default = 0)]
        blank: usize,
        /// Whether it is given logits, or log-probabilities. Default: true
        #[config(default = true)]
        logits: bool,
    }
}

raised! {
    RNNTLoss:
    forward(
        logits: Tensor<4>, targets: Tensor<2, Int>, logit_lengths: Tensor<1, Int>, target_lengths: Tensor<1, Int>
    ) -> Tensor<1>;
    forward_with_reduction(
        logits: Tensor<4>, targets: Tensor<2, Int>, logit_lengths: Tensor<1, Int>, target_lengths: Tensor<1, Int>,
        reduction: Reduction
    ) -> Tensor<1>;
}
