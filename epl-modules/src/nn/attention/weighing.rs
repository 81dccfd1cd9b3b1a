//! How scores become weights, by Burn's formula.

use burn::tensor::{Bool, Tensor, activation};
use epl_core::model::precision::widen;

use crate::dropout::Mask;

/// How scores are brought to their scale. Burn's gradient of a division has a factor in f32, of f64 too: so each layer does
/// as Burn's.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScoreScale {
    Divide(f64),
    Multiply(f64),
}

/// What the scores of one layer are made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct MaskedWeighing {
    pub(super) scale: ScoreScale,
    /// The score of a pair that is masked.
    pub(super) min_float: f64,
    /// Whether a query may attend to nothing.
    pub(super) quiet: bool,
}

impl MaskedWeighing {
    /// The weights of these queries and keys: in f32 at least, and then in the type of the keys.
    ///
    /// # Shapes
    ///
    /// - query: `[batch_size, heads, queries, size]`, key: `[batch_size, heads, keys, size]`
    /// - masks: `[batch_size, 1, 1 or queries, keys]`
    /// - result: `[batch_size, heads, queries, keys]`
    pub(super) fn weigh(
        self,
        query: Tensor<4>,
        key: Tensor<4>,
        masks: impl IntoIterator<Item = Tensor<4, Bool>>,
        dropout: Option<Mask>,
    ) -> Tensor<4> {
        let dtype = key.dtype();
        let scores = widen(query.cast(dtype).matmul(key.transpose()));
        let scores = match self.scale {
            ScoreScale::Divide(by) => scores / by,
            ScoreScale::Multiply(by) => scores * by,
        };
        let scores = masks.into_iter().fold(scores, |scores, mask| scores.mask_fill(mask, self.min_float));
        let weights = match self.quiet {
            true => activation::quiet_softmax(scores, 3),
            false => activation::softmax(scores, 3),
        };
        let weights = match dropout {
            Some(mask) => mask.forward(weights),
            None => weights,
        };
        weights.cast(dtype)
    }
}

/// `[batch_size, positions, heads * size]` to `[batch_size, heads, positions, size]`.
pub(super) fn by_head(features: Tensor<3>, size: usize) -> Tensor<4> {
    let [batch_size, positions, all] = features.dims();
    features.reshape([batch_size, positions, all / size, size]).swap_dims(1, 2)
}

/// The way back.
pub(super) fn by_position(heads: Tensor<4>) -> Tensor<3> {
    let [batch_size, count, positions, size] = heads.dims();
    heads.swap_dims(1, 2).reshape([batch_size, positions, count * size])
}
