//! The softmax of attention: scores become weights.

use burn::tensor::{Bool, DType, Device, Tensor};

use super::rows;
use crate::dropout::Mask;
use crate::host::{HostFloat, host_float};

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

/// The softmax and which of its elements are dropped.
pub(super) enum SavedWeights {
    /// In host memory: the softmax; the elements that are dropped have their sign changed.
    Signed { softmax: Tensor<4>, scale: Option<f64> },
    /// Elsewhere: the softmax and the mask.
    Masked { softmax: Tensor<4>, mask: Option<Tensor<4>> },
}

impl Weighing {
    /// The weights for these scores and this bias.
    ///
    /// # Shapes
    ///
    /// - scores: `[batch_size, heads, queries, keys]`, bias: `[1 or batch_size, heads, queries, keys]`
    pub(super) fn weigh(&self, scores: Tensor<4>, bias: Option<Tensor<4>>) -> Weights {
        match host_float(&scores).filter(|_| bias.as_ref().is_none_or(|bias| bias.dtype() == scores.dtype())) {
            Some(HostFloat::Single) => rows::weigh::<f32>(self, scores, bias),
            Some(HostFloat::Double) => rows::weigh::<f64>(self, scores, bias),
            None => self.weigh_tensors(scores, bias),
        }
    }

    fn weigh_tensors(&self, scores: Tensor<4>, bias: Option<Tensor<4>>) -> Weights {
        let (shape, device, dtype) = (scores.dims(), scores.device(), scores.dtype());
        // Large, negative and finite: a row without any key must not become NaN.
        let hidden = dtype.finfo().map_or(-1e4, |info| info.min);
        let scores = scores * self.scale;
        let scores = match bias {
            Some(bias) => scores + bias.cast(dtype),
            None => scores,
        };
        let softmax = match self.hidden(shape, &device) {
            Some(mask) => {
                let softmax = wide_softmax(scores.mask_fill(mask.clone(), hidden));
                softmax.mask_fill(mask, 0.0)
            }
            None => wide_softmax(scores),
        };
        let mask = self.dropout.as_ref().map(|mask| mask.tensor(shape, &device).cast(dtype));
        let kept = match &mask {
            Some(mask) => softmax.clone() * mask.clone(),
            None => softmax.clone(),
        };
        Weights { kept, saved: SavedWeights::Masked { softmax, mask } }
    }

    /// The pairs that no query sees.
    fn hidden(&self, shape: [usize; 4], device: &Device) -> Option<Tensor<4, Bool>> {
        let [batch_size, _, queries, keys] = shape;
        let padding = self.padding.as_ref().map(|padding| {
            padding.clone().inner().reshape([batch_size, 1, 1, keys]).expand(shape)
        });
        // True above the diagonal that ends in the last corner.
        let later = self.causal.then(|| {
            let offset = keys as i64 - queries as i64;
            Tensor::<2, Bool>::tril_mask([queries, keys], offset, device).reshape([1, 1, queries, keys]).expand(shape)
        });
        match (padding, later) {
            (Some(padding), Some(later)) => Some(padding.bool_or(later)),
            (padding, later) => padding.or(later),
        }
    }
}

/// The softmax along the last dim, computed in f32 at least.
fn wide_softmax(scores: Tensor<4>) -> Tensor<4> {
    let dtype = scores.dtype();
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    burn::tensor::activation::softmax(scores.cast(wide), 3).cast(dtype)
}

impl SavedWeights {
    /// From the gradient of the kept weights: the gradient of the scores with their bias, before the scale; and
    /// the kept weights again.
    ///
    /// With the softmax p and its gradient h: ∂score = p (h − Σ h p).
    pub(super) fn backward(self, grad: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        match self {
            Self::Signed { softmax, scale } if grad.dtype() == DType::F64 => {
                rows::backward::<f64>(softmax, scale, grad)
            }
            Self::Signed { softmax, scale } => rows::backward::<f32>(softmax, scale, grad),
            Self::Masked { softmax, mask } => {
                let (grad, kept) = match mask {
                    Some(mask) => (grad * mask.clone(), softmax.clone() * mask),
                    None => (grad, softmax.clone()),
                };
                let along = (grad.clone() * softmax.clone()).sum_dim(3);
                (softmax * (grad - along), kept)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Distribution;

    #[test]
    fn both_paths_agree_and_a_row_without_keys_is_zero() {
        let device = Device::flex();
        let normal = Distribution::Normal(0.0, 2.0);
        let [scores, grad] = [(); 2].map(|()| Tensor::<4>::random([2, 3, 5, 19], normal, &device));
        let bias = Tensor::<4>::random([1, 3, 5, 19], normal, &device);
        let padding: Vec<bool> = (0..2 * 19).map(|i| i >= 19 || i % 4 == 1).collect();
        let padding = Tensor::<1, Bool>::from_data(padding.as_slice(), &device).reshape([2, 19]);
        for causal in [false, true] {
            let weighing = Weighing { scale: 0.5, causal, padding: Some(padding.clone()), dropout: None };
            let a = weighing.weigh(scores.clone(), Some(bias.clone()));
            let b = weighing.weigh_tensors(scores.clone(), Some(bias.clone()));
            assert_eq!(b.kept.clone().narrow(0, 1, 1).abs().max().into_scalar::<f32>(), 0.0);
            let ((ga, ka), (gb, kb)) = (a.saved.backward(grad.clone()), b.saved.backward(grad.clone()));
            for difference in [a.kept - b.kept, ga - gb, ka - kb] {
                assert!(difference.abs().max().into_scalar::<f32>() < 1e-6);
            }
        }
    }
}
