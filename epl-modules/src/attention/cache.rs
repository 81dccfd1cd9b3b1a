//! Keys and values that generation does not compute twice.

use burn::tensor::{Int, Tensor};

/// The keys and values of one attention layer, for generation token by token.
///
/// A self-attention appends those of the new tokens, and with a window forgets those that no later token sees; a
/// cross-attention keeps those of its memory. Each rank caches its own heads. Use one cache a layer and a generation.
#[derive(Clone, Debug, Default)]
pub struct AttentionCache {
    keys_values: Option<(Tensor<4>, Tensor<4>)>,
    /// Key positions that it has forgotten.
    forgotten: usize,
}

impl AttentionCache {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of key positions that it was given, with those that a window has made it forget.
    pub fn len(&self) -> usize {
        self.forgotten + self.keys_values.as_ref().map_or(0, |(keys, _)| keys.dims()[2])
    }

    /// The number of first positions whose keys it no longer holds.
    pub(super) fn forgotten(&self) -> usize {
        self.forgotten
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
        Self { keys_values: self.keys_values.map(select), ..self }
    }

    /// Appends keys and values `[batch_size, heads, positions, head_dim]` and returns all that it then holds. Of these it keeps
    /// what a later position sees: with a window one less than that.
    pub(super) fn append(
        &mut self,
        keys: Tensor<4>,
        values: Tensor<4>,
        window: Option<usize>,
    ) -> (Tensor<4>, Tensor<4>) {
        let all = match self.keys_values.take() {
            Some((old_keys, old_values)) => {
                (Tensor::cat(vec![old_keys, keys], 2), Tensor::cat(vec![old_values, values], 2))
            }
            None => (keys, values),
        };
        let held = all.0.dims()[2];
        let unseen = window.map_or(0, |window| (held + 1).saturating_sub(window));
        let kept = |x: &Tensor<4>| if unseen == 0 { x.clone() } else { x.clone().slice_dim(2, unseen..held) };
        self.forgotten += unseen;
        self.keys_values = Some((kept(&all.0), kept(&all.1)));
        all
    }

    /// Returns what it holds, or fills it first.
    pub(super) fn get_or_fill(&mut self, fill: impl FnOnce() -> (Tensor<4>, Tensor<4>)) -> (Tensor<4>, Tensor<4>) {
        self.keys_values.get_or_insert_with(fill).clone()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn what_no_later_position_sees_is_forgotten() {
        let positions = |from: i64, to: i64| Tensor::<1, Int>::arange(from..to, &Device::flex()).float();
        let keys = |from, to: i64| positions(from, to).reshape([1, 1, (to - from) as usize, 1]);
        for (window, kept) in [(None, 0), (Some(9), 0), (Some(3), 5), (Some(2), 6), (Some(1), 7)] {
            let mut cache = AttentionCache::new();
            // All of a prompt see each other, whatever is kept of it.
            assert_eq!(cache.append(keys(0, 5), keys(0, 5), window).0.dims()[2], 5, "{window:?}");
            let (seen, values) = cache.append(keys(5, 7), keys(5, 7), window);
            let first = window.map_or(0, |window: usize| 6_usize.saturating_sub(window));
            let expected: Vec<f32> = (first..7).map(|position| position as f32).collect();
            assert_eq!(seen.into_data().iter::<f32>().collect::<Vec<_>>(), expected, "{window:?}");
            assert_eq!(values.dims()[2], expected.len());
            assert_eq!((cache.len(), cache.forgotten()), (7, kept), "{window:?}");
        }
    }
}
