//! The softmax of attention: it chooses the path, in host memory or in tensor operations.

use burn::tensor::{Bool, DType, Device, Tensor, activation};
use epl_core::model::precision::widen;

use super::rows;
use super::weighing::{Dropped, SavedWeights, Weighing, Weights};
use crate::host::{HostFloat, host_float};

impl Weighing {
    /// The weights for these scores and this bias, in the type of the scores; computed in f32 at least.
    ///
    /// # Shapes
    ///
    /// - scores: `[batch_size, heads, queries, keys]`, bias: `[1 or batch_size, heads, queries, keys]`
    pub(super) fn weigh(&self, scores: Tensor<4>, bias: Option<Tensor<4>>) -> Weights {
        let (dtype, scores) = (scores.dtype(), widen(scores));
        let bias = bias.map(|bias| bias.cast(scores.dtype()));
        let weights = match host_float(&scores) {
            Some(HostFloat::Single) => rows::weigh::<f32>(self, scores, bias),
            Some(HostFloat::Double) => rows::weigh::<f64>(self, scores, bias),
            None => self.weigh_tensors(scores, bias),
        };
        weights.cast(dtype)
    }

    fn weigh_tensors(&self, scores: Tensor<4>, bias: Option<Tensor<4>>) -> Weights {
        let (shape, device, dtype) = (scores.dims(), scores.device(), scores.dtype());
        // Large, negative and finite: a row without any key must not become NaN.
        let hidden = dtype.finfo().map_or(-1e4, |info| info.min);
        let scores = scores * self.scale;
        let scores = match bias {
            Some(bias) => scores + bias,
            None => scores,
        };
        let softmax = match self.hidden(shape, &device) {
            Some(mask) => {
                let softmax = activation::softmax(scores.mask_fill(mask.clone(), hidden), 3);
                softmax.mask_fill(mask, 0.0)
            }
            None => activation::softmax(scores, 3),
        };
        let mask = self.dropout.as_ref().map(|mask| mask.tensor(shape, &device).cast(dtype));
        let kept = match &mask {
            Some(mask) => softmax.clone() * mask.clone(),
            None => softmax.clone(),
        };
        let dropped = mask.map_or(Dropped::Nothing, |mask| Dropped::Mask(Box::new(mask)));
        Weights { kept, saved: SavedWeights { softmax, dropped } }
    }

    /// The pairs that no query sees.
    fn hidden(&self, shape: [usize; 4], device: &Device) -> Option<Tensor<4, Bool>> {
        let [batch_size, _, queries, keys] = shape;
        let padding = self
            .padding
            .as_ref()
            .map(|padding| padding.clone().inner().reshape([batch_size, 1, 1, keys]).expand(shape));
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

impl Weights {
    /// What is kept until backward takes no more room than the scores did. The sign of a zero, which tells that it is
    /// dropped, stays.
    fn cast(self, dtype: DType) -> Self {
        let Self { kept, saved: SavedWeights { softmax, dropped } } = self;
        let kept = kept.cast(dtype);
        let softmax = if matches!(dropped, Dropped::Nothing) { kept.clone() } else { softmax.cast(dtype) };
        Self { kept, saved: SavedWeights { softmax, dropped } }
    }
}

impl SavedWeights {
    /// From the gradient of the kept weights: the gradient of the scores with their bias, before the scale, in f32 at
    /// least; and the kept weights again, in their type.
    ///
    /// With the softmax p and its gradient h: ∂score = p (h − Σ h p).
    pub(super) fn backward(self, grad: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let Self { softmax, dropped } = self;
        let (dtype, softmax, grad) = (softmax.dtype(), widen(softmax), widen(grad));
        let (grad, kept) = match (host_float(&grad), dropped) {
            (_, Dropped::Mask(mask)) => backward_tensors(softmax, Some(*mask), grad),
            (Some(HostFloat::Single), dropped) => rows::backward::<f32>(softmax, &dropped, grad),
            (Some(HostFloat::Double), dropped) => rows::backward::<f64>(softmax, &dropped, grad),
            (None, _) => backward_tensors(softmax, None, grad),
        };
        (grad, kept.cast(dtype))
    }
}

fn backward_tensors(softmax: Tensor<4>, mask: Option<Tensor<4>>, grad: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
    let (grad, kept) = match mask {
        Some(mask) => (grad * mask.clone(), softmax.clone() * mask),
        None => (grad, softmax.clone()),
    };
    let along = (grad.clone() * softmax.clone()).sum_dim(3);
    (softmax * (grad - along), kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dropout::Mask;
    use crate::random::Noise;
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

    /// Scores in 16 bits are weighed in f32, bias, masks and dropout too: the same bits as of the same scores in f32,
    /// rounded once.
    #[test]
    fn sixteen_bits_are_weighed_in_f32() {
        let (device, normal) = (Device::flex(), Distribution::Normal(0.0, 2.0));
        let bias = Tensor::<4>::random([1, 3, 5, 19], normal, &device);
        let mask = |prob| Mask::new(prob, Noise::new(1, 2, 3, 4), [7, 9].into());
        for (dtype, dropout) in [DType::F16, DType::BF16].into_iter().flat_map(|t| [None, Some(0.3)].map(|p| (t, p))) {
            let weighing = Weighing { scale: 0.3, causal: true, padding: None, dropout: dropout.map(mask) };
            let [scores, grad] = [(); 2].map(|()| Tensor::<4>::random([2, 3, 5, 19], normal, &device).cast(dtype));
            let half = weighing.weigh(scores.clone(), Some(bias.clone()));
            let full = weighing.weigh(widen(scores), Some(bias.clone()));
            assert_eq!(half.kept.clone().into_data(), full.kept.clone().cast(dtype).into_data());
            let saved = full.saved.softmax.cast(dtype);
            assert_eq!(half.saved.softmax.clone().into_data(), saved.clone().into_data());
            let full = SavedWeights { softmax: widen(saved), dropped: full.saved.dropped };
            let ((ga, ka), (gb, kb)) = (half.saved.backward(grad.clone()), full.backward(widen(grad)));
            assert_eq!((ga.dtype(), ka.dtype()), (DType::F32, dtype));
            assert_eq!((ga.into_data(), ka.into_data()), (gb.into_data(), kb.cast(dtype).into_data()));
        }
    }
}
