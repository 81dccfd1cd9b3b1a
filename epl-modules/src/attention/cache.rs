//! Keys and values that generation does not compute twice.

use burn::tensor::{Int, Tensor};

/// The keys and values of one attention layer, for generation token by token.
///
/// A self-attention appends those of the new tokens; a cross-attention keeps those of its memory. Each rank caches
/// its own heads. Use one cache a layer and a generation.
#[derive(Clone, Debug, Default)]
pub struct AttentionCache {
    keys_values: Option<(Tensor<4>, Tensor<4>)>,
}

impl AttentionCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of key positions it holds.
    pub fn len(&self) -> usize {
        self.keys_values.as_ref().map_or(0, |(keys, _)| keys.dims()[2])
    }

    /// The sequences of which it holds keys, if it holds any.
    pub(super) fn batch_size(&self) -> Option<usize> {
        self.keys_values.as_ref().map(|(keys, _)| keys.dims()[0])
    }

    /// Whether it holds nothing yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps these rows of the batch, in this order: sequences that ended are dropped, beams are reordered.
    ///
    /// # Shapes
    ///
    /// - rows: `[new_batch_size]`
    #[must_use]
    pub fn select(self, rows: Tensor<1, Int>) -> Self {
        let select =
            |(keys, values): (Tensor<4>, Tensor<4>)| (keys.select(0, rows.clone()), values.select(0, rows.clone()));
        Self { keys_values: self.keys_values.map(select) }
    }

    /// Appends keys and values `[batch_size, heads, positions, head_dim]` and returns all of them.
    pub(super) fn append(&mut self, keys: Tensor<4>, values: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let all = match self.keys_values.take() {
            Some((old_keys, old_values)) => {
                (Tensor::cat(vec![old_keys, keys], 2), Tensor::cat(vec![old_values, values], 2))
            }
            None => (keys, values),
        };
        self.keys_values.insert(all).clone()
    }

    /// Returns what it holds, or fills it first.
    pub(super) fn get_or_fill(&mut self, fill: impl FnOnce() -> (Tensor<4>, Tensor<4>)) -> (Tensor<4>, Tensor<4>) {
        self.keys_values.get_or_insert_with(fill).clone()
    }
}
