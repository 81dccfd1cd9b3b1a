//! Losses of what is to be near or far, before or behind.

use burn::nn::loss::Reduction;
use burn::tensor::{Int, Tensor};

configured! {
    /// The angle between vectors.
    ///
    CosineEmbeddingLoss, CosineEmbeddingLossConfig() {
        /// The cosine that unlike vectors may have. Default: 0
        #[config(default = 0.0)]
        margin: f32,
        /// What is made of the losses of a batch. Default: their mean
        #[config(default = "Reduction::Mean")]
        reduction: Reduction,
    }
}

impl CosineEmbeddingLoss {
    /// Creates the loss with defaults.
    pub fn new() -> Self {
        CosineEmbeddingLossConfig::new().init()
    }
}

impl Default for CosineEmbeddingLoss {
    fn default() -> Self {
        Self::new()
    }
}

raised! {
    CosineEmbeddingLoss:
    forward(input1: Tensor<2>, input2: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1>;
    forward_no_reduction(input1: Tensor<2>, input2: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1>;
}

configured! {
    /// A distance, of targets 1 as it is, and of targets -1 what it is below the margin.
    ///
    HingeEmbeddingLoss, HingeEmbeddingLossConfig() {
        /// The margin. Default: 1
        #[config(default = 1.0)]
        margin: f64,
    }
}

raised! {
    HingeEmbeddingLoss:
    forward<const D>(input: Tensor<D>, target: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction<const D>(input: Tensor<D>, target: Tensor<D>) -> Tensor<D>;
}

configured! {
    /// Two scores, of which the target says which is to be larger.
    ///
    MarginRankingLoss, MarginRankingLossConfig() {
        /// By how much it is to be larger, not below zero. Default: 0
        #[config(default = 0.0)]
        margin: f64,
    }
}

raised! {
    MarginRankingLoss:
    forward<const D>(first: Tensor<D>, second: Tensor<D>, target: Tensor<D>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction<const D>(first: Tensor<D>, second: Tensor<D>, target: Tensor<D>) -> Tensor<D>;
}

configured! {
    /// Distances of an anchor from what is to be near and what is to be far.
    ///
    TripletMarginLoss, TripletMarginLossConfig() {
        /// By how much the other is to be farther. Default: 1
        #[config(default = 1.0)]
        margin: f64,
        /// The order of the norm. Default: 2
        #[config(default = 2.0)]
        p: f64,
    }
}

raised! {
    TripletMarginLoss:
    forward(anchor: Tensor<2>, positive: Tensor<2>, negative: Tensor<2>, reduction: Reduction) -> Tensor<1>;
    forward_no_reduction(anchor: Tensor<2>, positive: Tensor<2>, negative: Tensor<2>) -> Tensor<1>;
}
