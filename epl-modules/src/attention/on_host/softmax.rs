//! The softmax of a block, and its gradient.

use multiversion::multiversion;

use super::cut::{Block, Cut};
use crate::host::{Real, map_sum, max_of, sum_of};

/// How the products of queries and keys become weights.
pub(super) struct Softmax<'a, T> {
    pub cut: Cut,
    pub scale: T,
    pub bias: Option<&'a [T]>,
    pub padding: Option<&'a [T]>,
}

impl<T: Real> Softmax<'_, T> {
    /// From the products of a block, `[queries, seen]`.
    pub fn forward(&self, block: Block, products: &mut [T]) {
        if block.seen > 0 {
            softmax(self, block, products);
        }
    }

    /// The gradient of the weights becomes that of the products; that of the bias, of rows of all keys, is added up.
    pub fn backward(&self, block: Block, weights: &[T], grad: &mut [T], of_bias: Option<&mut [T]>) {
        if block.seen > 0 {
            softmax_backward(weights, grad, (block.seen, self.cut.shape[3]), of_bias, self.scale);
        }
    }

    /// What a query sees, and its bias and padding.
    #[inline(always)]
    fn adjust(&self, block: Block, query: usize) -> (usize, [Option<&[T]>; 2]) {
        let [_, heads, _, keys] = self.cut.shape;
        let seen = self.cut.seen(block.first + query);
        let bias = self.bias.map(|bias| {
            let first = self.cut.row(block, query) * keys % bias.len();
            &bias[first..first + seen]
        });
        let padding = self.padding.map(|padding| {
            let first = block.head / heads * keys;
            &padding[first..first + seen]
        });
        (seen, [bias, padding])
    }
}

#[multiversion(targets = "simd")]
fn softmax<T: Real>(numbers: &Softmax<'_, T>, block: Block, scores: &mut [T]) {
    for (query, row) in scores.chunks_exact_mut(block.seen).enumerate() {
        let (seen, addends) = numbers.adjust(block, query);
        let (row, hidden) = row.split_at_mut(seen);
        hidden.fill(T::ZERO);
        row.iter_mut().for_each(|x| *x = *x * numbers.scale);
        for addend in addends.into_iter().flatten() {
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

/// With the softmax p and its gradient h: ∂score = p (h − Σ h p).
#[multiversion(targets = "simd")]
fn softmax_backward<T: Real>(
    weights: &[T],
    grad: &mut [T],
    (seen, keys): (usize, usize),
    mut of_bias: Option<&mut [T]>,
    scale: T,
) {
    for (query, (p, grad)) in weights.chunks_exact(seen).zip(grad.chunks_exact_mut(seen)).enumerate() {
        let along = sum_of(p, grad, |p, h| p * h);
        grad.iter_mut().zip(p).for_each(|(grad, p)| *grad = *p * (*grad - along));
        if let Some(of_bias) = &mut of_bias {
            of_bias[query * keys..][..seen].iter_mut().zip(&*grad).for_each(|(sum, grad)| *sum += *grad);
        }
        grad.iter_mut().for_each(|grad| *grad = *grad * scale);
    }
}
