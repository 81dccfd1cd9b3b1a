//! How scores become weights, and what is kept of them for backward.

use burn::tensor::{Bool, Tensor};

use crate::dropout::Mask;

/// How the scores of all pairs become weights.
#[derive(Clone, Debug)]
pub(super) struct Weighing {
    /// What scores are multiplied by.
    pub scale: f64,
    /// Whether a query sees no later keys; the last query stands at the last key.
    pub causal: bool,
    /// `[batch_size, keys]`, true where no query sees a key.
    pub padding: Option<Tensor<2, Bool>>,
    /// Dropout of the weights, drawn per (head, query, key).
    pub dropout: Option<Mask>,
}

/// Attention weights, `[batch_size, heads, queries, keys]`.
pub(super) struct Weights {
    /// After dropout: what the values are multiplied by.
    pub kept: Tensor<4>,
    /// What backward needs.
    pub saved: SavedWeights,
}

/// The softmax, and which of its elements are dropped.
pub(super) struct SavedWeights {
    pub softmax: Tensor<4>,
    /// What dropout has multiplied them by.
    pub mask: Option<Tensor<4>>,
}
