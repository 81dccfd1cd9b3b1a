//! The softmax of attention in host memory: bias, masks, softmax and dropout in one pass over the scores.

use burn::tensor::{Bool, Tensor};
use multiversion::multiversion;

use super::weighing::{Dropped, SavedWeights, Weighing, Weights};
use crate::host::{self, Owned, Real, View, map_sum, max_of, sum_of};

/// What a row of scores is adjusted by before the softmax.
struct Adjust<'a, T> {
    shape: [usize; 4],
    scale: T,
    causal: bool,
    /// `[1 or batch_size, heads, queries, keys]`
    bias: Option<&'a [T]>,
    /// 0 or -∞, `[batch_size, keys]`
    padding: Option<&'a [T]>,
}

impl<T: Real> Adjust<'_, T> {
    /// How many keys a row may see, and the row's bias and padding.
    #[inline(always)]
    fn row(&self, row: usize) -> (usize, Option<&[T]>, Option<&[T]>) {
        let [_, heads, queries, keys] = self.shape;
        let query = row % queries;
        let visible = if self.causal { (query + 1 + keys).saturating_sub(queries).min(keys) } else { keys };
        let bias = self.bias.map(|bias| {
            let first = row * keys % bias.len();
            &bias[first..first + visible]
        });
        let padding = self.padding.map(|padding| {
            let first = row / (heads * queries) * keys;
            &padding[first..first + visible]
        });
        (visible, bias, padding)
    }
}

/// See [`Weighing::weigh`].
pub(super) fn weigh<T: Real>(weighing: &Weighing, scores: Tensor<4>, bias: Option<Tensor<4>>) -> Weights {
    let (shape, device) = (scores.dims(), scores.device());
    let keys = shape[3];
    let bias = bias.map(View::<T>::new);
    let padding = weighing.padding.clone().map(additive::<T>);
    let adjust = Adjust {
        shape,
        scale: T::of(weighing.scale),
        causal: weighing.causal,
        bias: bias.as_ref().map(View::slice),
        padding: padding.as_deref(),
    };
    let mut scores = Owned::<T>::take(scores);
    let rows = host::rows_a_task(keys);
    host::for_blocks(scores.slice_mut(), rows * keys, |block, scores| softmax(&adjust, block * rows, scores));
    let Some(mask) = &weighing.dropout else {
        let softmax = scores.into_tensor::<4>(&device);
        let saved = SavedWeights { softmax: softmax.clone(), dropped: Dropped::Nothing };
        return Weights { kept: softmax, saved };
    };
    let mut kept = vec![T::ZERO; scores.slice_mut().len()];
    host::for_blocks2((scores.slice_mut(), rows * keys), (&mut kept, rows * keys), |block, softmax, kept| {
        let pairs = softmax.chunks_exact_mut(keys).zip(kept.chunks_exact_mut(keys));
        for (index, (softmax, kept)) in pairs.enumerate() {
            mask.keep.sign(mask.row(shape, block * rows + index), softmax, kept);
        }
    });
    let saved = SavedWeights { softmax: scores.into_tensor(&device), dropped: Dropped::Signs(mask.keep.scale) };
    Weights { kept: host::tensor(kept, shape, &device), saved }
}

/// 0 where a key is seen, -∞ where it is padding.
fn additive<T: Real>(padding: Tensor<2, Bool>) -> Vec<T> {
    padding.into_data().iter::<bool>().map(|hidden| if hidden { T::NEG_INFINITY } else { T::ZERO }).collect()
}

#[multiversion(targets = "simd")]
fn softmax<T: Real>(adjust: &Adjust<'_, T>, first: usize, scores: &mut [T]) {
    for (index, row) in scores.chunks_exact_mut(adjust.shape[3]).enumerate() {
        let (visible, bias, padding) = adjust.row(first + index);
        let (row, hidden) = row.split_at_mut(visible);
        hidden.fill(T::ZERO);
        row.iter_mut().for_each(|x| *x = *x * adjust.scale);
        for addend in [bias, padding].into_iter().flatten() {
            row.iter_mut().zip(addend).for_each(|(x, addend)| *x += *addend);
        }
        let largest = max_of(row);
        if largest == T::NEG_INFINITY {
            // No key is seen, or no score is a number.
            row.iter_mut().for_each(|x| *x = if *x == T::NEG_INFINITY { T::ZERO } else { *x });
            continue;
        }
        let inverse = T::ONE / map_sum(row, |x| (x - largest).exp());
        row.iter_mut().for_each(|x| *x = *x * inverse);
    }
}

/// See [`SavedWeights::backward`].
pub(super) fn backward<T: Real>(softmax: Tensor<4>, dropped: &Dropped, grad: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
    let (shape, device) = (grad.dims(), grad.device());
    let keys = shape[3];
    let rows = host::rows_a_task(keys);
    let mut grad = Owned::<T>::take(grad);
    let Dropped::Signs(scale) = *dropped else {
        let values = View::<T>::new(softmax.clone());
        host::for_blocks(grad.slice_mut(), rows * keys, |block, grad| {
            let first = block * rows * keys;
            softmax_backward(&values.slice()[first..first + grad.len()], keys, grad);
        });
        return (grad.into_tensor(&device), softmax);
    };
    let mut softmax = Owned::<T>::take(softmax);
    host::for_blocks2((grad.slice_mut(), rows * keys), (softmax.slice_mut(), rows * keys), |_, grad, softmax| {
        dropped_softmax_backward(softmax, T::of(scale), keys, grad);
    });
    (grad.into_tensor(&device), softmax.into_tensor(&device))
}

#[multiversion(targets = "simd")]
fn softmax_backward<T: Real>(softmax: &[T], keys: usize, grad: &mut [T]) {
    for (p, grad) in softmax.chunks_exact(keys).zip(grad.chunks_exact_mut(keys)) {
        let along = sum_of(p, grad, |p, h| p * h);
        grad.iter_mut().zip(p).for_each(|(grad, p)| *grad = *p * (*grad - along));
    }
}

/// The same for a softmax whose dropped elements have their sign changed; it becomes the kept weights.
#[multiversion(targets = "simd")]
fn dropped_softmax_backward<T: Real>(softmax: &mut [T], scale: T, keys: usize, grad: &mut [T]) {
    for (p, grad) in softmax.chunks_exact_mut(keys).zip(grad.chunks_exact_mut(keys)) {
        for (p, grad) in p.iter().zip(grad.iter_mut()) {
            *grad = if p.is_dropped() { T::ZERO } else { *grad * scale };
        }
        let along = sum_of(p, grad, |p, h| p.magnitude() * h);
        for (p, grad) in p.iter_mut().zip(grad) {
            *grad = p.magnitude() * (*grad - along);
            *p = if p.is_dropped() { T::ZERO } else { *p * scale };
        }
    }
}
