//! What a layer keeps between the steps of generation.

use burn::tensor::{Int, Tensor};
use epl_core::SegmentState;

use crate::attention::AttentionCache;

/// The keys and values that one layer keeps between the steps of generation: of its own positions, and of the memory.
///
/// Use one cache a layer and a generation.
#[derive(Clone, Debug, Default)]
pub struct TransformerCache {
    pub(super) own: AttentionCache,
    pub(super) memory: AttentionCache,
}

impl TransformerCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of the layer's own positions that it was given: see [`AttentionCache::len`].
    pub fn len(&self) -> usize {
        self.own.len()
    }

    /// Whether it holds nothing yet.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Keeps these rows of the batch, in this order: sequences that ended are dropped, beams are reordered.
    ///
    /// # Shapes
    ///
    /// - rows: `[new_batch_size]`
    #[must_use]
    pub fn select(self, rows: Tensor<1, Int>) -> Self {
        Self { own: self.own.select(rows.clone()), memory: self.memory.select(rows) }
    }
}

impl SegmentState for TransformerCache {
    fn select(self, rows: Tensor<1, Int>) -> Self {
        Self::select(self, rows)
    }
}
