//! The softmax of attention in tensor operations, where the scores do not lie in host memory.

use burn::tensor::{Bool, Device, Tensor};
use epl_core::model::precision::widen;

use super::weighing::{SavedWeights, Sight, Weighing, Weights};
use crate::activation::Smooth;

impl Weighing {
    /// The weights for these scores and this bias, in the type of the scores; computed in f32 at least.
    ///
    /// # Shapes
    ///
    /// - scores: `[batch_size, heads, queries, keys]`, bias: `[biases, heads, queries, keys]`, begun anew after so many sequences
    pub(super) fn weigh(&self, scores: Tensor<4>, bias: Option<Tensor<4>>) -> Weights {
        let (narrow, scores) = (scores.dtype(), widen(scores));
        let (shape, device, dtype) = (scores.dims(), scores.device(), scores.dtype());
        let (scores, slopes) = match self.softcap {
            Some(softcap) => {
                let (scores, slopes) = softcap.of_tensor(scores * self.scale);
                (scores, Some(slopes.cast(narrow)))
            }
            None => (scores * self.scale, None),
        };
        let scores = match bias {
            Some(bias) => biased(scores, bias.cast(dtype)),
            None => scores,
        };
        let (softmax, slopes) = match self.hidden(shape, &device) {
            Some(mask) => {
                // Scores that are not seen may be no numbers, and their slopes.
                let slopes = slopes.map(|slopes| slopes.mask_fill(mask.clone(), 0.0));
                (softmax(scores.mask_fill(mask, f64::NEG_INFINITY)), slopes)
            }
            None => (softmax(scores), slopes),
        };
        let mask = self.dropout.as_ref().map(|mask| mask.tensor(shape, &device).cast(dtype));
        let kept = match &mask {
            Some(mask) => (softmax.clone() * mask.clone()).cast(narrow),
            None => softmax.clone().cast(narrow),
        };
        let softmax = if mask.is_some() { softmax.cast(narrow) } else { kept.clone() };
        Weights { kept, saved: SavedWeights { softmax, mask, slopes } }
    }

    /// The pairs that no query sees.
    fn hidden(&self, shape: [usize; 4], device: &Device) -> Option<Tensor<4, Bool>> {
        let [batch_size, _, queries, keys] = shape;
        let padding = self
            .padding
            .as_ref()
            .map(|padding| padding.clone().inner().reshape([batch_size, 1, 1, keys]).expand(shape));
        let unseen = match self.sight {
            Sight::All => None,
            Sight::Causal { window } => {
                // Above the diagonal that ends in the last corner, and below the one that lies a window before it.
                let (offset, pairs) = (keys as i64 - queries as i64, [queries, keys]);
                let later = Tensor::<2, Bool>::tril_mask(pairs, offset, device);
                let first = window.map(|window| offset + 1 - window.min(queries + keys) as i64);
                let unseen = match first.map(|first| Tensor::triu_mask(pairs, first, device)) {
                    Some(earlier) => later.bool_or(earlier),
                    None => later,
                };
                Some(unseen.reshape([1, 1, queries, keys]).expand(shape))
            }
        };
        match (padding, unseen) {
            (Some(padding), Some(unseen)) => Some(padding.bool_or(unseen)),
            (padding, unseen) => padding.or(unseen),
        }
    }
}

/// Zeros in a row without a key, which has -∞ everywhere, by masks or by its bias: Burn's softmax makes it NaN.
fn softmax(scores: Tensor<4>) -> Tensor<4> {
    let lowest = scores.dtype().finfo().map_or(-1e4, |info| info.min);
    let largest = scores.clone().max_dim(3).clamp_min(lowest);
    let powers = (scores - largest).exp();
    // One at least where there is a key.
    let sum = powers.clone().sum_dim(3).clamp_min(0.5);
    powers / sum
}

/// The scores with their biases, which begin anew after so many sequences as there are of them.
fn biased(scores: Tensor<4>, bias: Tensor<4>) -> Tensor<4> {
    let ([batch_size, heads, queries, keys], biases) = (scores.dims(), bias.dims()[0]);
    if biases == 1 || biases == batch_size {
        return scores + bias;
    }
    let apart = scores.reshape([batch_size / biases, biases * heads, queries, keys]);
    (apart + bias.reshape([1, biases * heads, queries, keys])).reshape([batch_size, heads, queries, keys])
}

impl SavedWeights {
    /// From the gradient of the kept weights: the gradients of the scores with their bias and of what the scale has made, in f32
    /// at least; and the kept weights again, in their type.
    ///
    /// With the softmax p and its gradient h: ∂score = p (h − Σ h p).
    pub(super) fn backward(self, grad: Tensor<4>) -> ([Tensor<4>; 2], Tensor<4>) {
        let Self { softmax, mask, slopes } = self;
        let (dtype, softmax, grad) = (softmax.dtype(), widen(softmax), widen(grad));
        let (grad, kept) = match mask {
            Some(mask) => (grad * mask.clone(), softmax.clone() * mask),
            None => (grad, softmax.clone()),
        };
        let along = (grad.clone() * softmax.clone()).sum_dim(3);
        let of_scores = softmax * (grad - along);
        let of_scaled = match slopes {
            Some(slopes) => of_scores.clone() * widen(slopes),
            None => of_scores.clone(),
        };
        ([of_scores, of_scaled], kept.cast(dtype))
    }
}
