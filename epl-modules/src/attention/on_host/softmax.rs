//! The softmax of a block, and its gradient.

use core::mem::MaybeUninit;
use core::ops::Range;

use multiversion::multiversion;

use super::cut::{Block, Cut};
use crate::activation::Smooth;
use crate::host::{Real, map_sum, max_of, sum_of};
use crate::softcap::Softcap;

/// How the products of queries and keys become weights.
pub(super) struct Softmax<'a, T> {
    pub cut: Cut,
    pub scale: T,
    pub softcap: Option<Softcap>,
    pub bias: Option<&'a [T]>,
    pub padding: Option<&'a [T]>,
}

impl<T: Real> Softmax<'_, T> {
    /// From the products of a block, `[queries, keys]`. `slopes`, as many or none, become the derivatives of the softcap:
    /// all are written if there is one.
    pub fn forward(&self, block: Block, products: &mut [T], slopes: &mut [MaybeUninit<T>]) {
        if block.keys > 0 {
            softmax(self, block, products, slopes);
        }
    }

    /// The gradient of the weights becomes that of the products; that of the bias, of rows of all keys, is added up.
    pub fn backward(&self, block: Block, [weights, slopes]: [&[T]; 2], grad: &mut [T], of_bias: Option<&mut [T]>) {
        if block.keys > 0 {
            softmax_backward(self, block, [weights, slopes], grad, of_bias);
        }
    }

    /// The bias of a block's queries, of all keys each, and the padding of its keys.
    fn addends(&self, block: Block) -> [Option<&[T]>; 2] {
        let [_, heads, _, keys] = self.cut.shape;
        let bias = self.bias.map(|bias| {
            let first = self.cut.row(block, 0) * keys % bias.len();
            &bias[first..first + block.queries * keys]
        });
        [bias, self.padding.map(|padding| &padding[block.head / heads * keys..][..keys])]
    }
}

#[multiversion(targets = "simd")]
fn softmax<T: Real>(numbers: &Softmax<'_, T>, block: Block, scores: &mut [T], slopes: &mut [MaybeUninit<T>]) {
    let mut slopes = slopes.chunks_exact_mut(block.keys);
    let ([bias, padding], all) = (numbers.addends(block), numbers.cut.shape[3]);
    for (query, row) in scores.chunks_exact_mut(block.keys).enumerate() {
        let keys = numbers.cut.seen(block.first + query);
        let seen = keys.start - block.first_key..keys.end - block.first_key;
        let row = only(row, seen.clone(), T::ZERO);
        let padding = padding.map(|padding| &padding[keys.clone()]);
        let scale = match numbers.softcap {
            None => numbers.scale,
            Some(softcap) => {
                // Its slope is a number then, too.
                scaled(row, numbers.scale, None, padding, T::ZERO);
                match slopes.next() {
                    Some(slopes) => {
                        let slopes = only(slopes, seen, MaybeUninit::new(T::ZERO));
                        row.iter_mut().zip(slopes).for_each(|(x, slope)| {
                            let (value, derivative) = softcap.of(*x);
                            *x = value;
                            slope.write(derivative);
                        });
                    }
                    None => row.iter_mut().for_each(|x| *x = softcap.of(*x).0),
                }
                T::ONE
            }
        };
        let bias = bias.map(|bias| &bias[query * all..][keys]);
        if scale != T::ONE || bias.is_some() || padding.is_some() {
            scaled(row, scale, bias, padding, T::NEG_INFINITY);
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

/// Scores with their scale and bias; something in the place of those of padding, which may be no numbers. Every element is written,
/// as stores of some are slow on processors without AVX-512.
#[inline(always)]
fn scaled<T: Real>(row: &mut [T], scale: T, bias: Option<&[T]>, padding: Option<&[T]>, of_padding: T) {
    let shown = |x: T, addend: T| if addend == T::NEG_INFINITY { of_padding } else { x };
    match (bias, padding) {
        (None, None) => row.iter_mut().for_each(|x| *x = *x * scale),
        (Some(bias), None) => row.iter_mut().zip(bias).for_each(|(x, bias)| *x = *x * scale + *bias),
        (None, Some(padding)) => row.iter_mut().zip(padding).for_each(|(x, addend)| *x = shown(*x * scale, *addend)),
        (Some(bias), Some(padding)) => {
            row.iter_mut()
                .zip(bias)
                .zip(padding)
                .for_each(|((x, bias), addend)| *x = shown(*x * scale + *bias, *addend));
        }
    }
}

/// The part of a row that is seen; the others become zero.
#[inline(always)]
fn only<T: Copy>(row: &mut [T], seen: Range<usize>, zero: T) -> &mut [T] {
    row[..seen.start].fill(zero);
    row[seen.end..].fill(zero);
    &mut row[seen]
}

/// With the softmax p and its gradient h: ∂score = p (h − Σ h p).
#[multiversion(targets = "simd")]
fn softmax_backward<T: Real>(
    numbers: &Softmax<'_, T>,
    block: Block,
    [weights, slopes]: [&[T]; 2],
    grad: &mut [T],
    mut of_bias: Option<&mut [T]>,
) {
    let (keys, all) = (block.keys, numbers.cut.shape[3]);
    let mut slopes = slopes.chunks_exact(keys);
    for (query, (p, grad)) in weights.chunks_exact(keys).zip(grad.chunks_exact_mut(keys)).enumerate() {
        let along = sum_of(p, grad, |p, h| p * h);
        grad.iter_mut().zip(p).for_each(|(grad, p)| *grad = *p * (*grad - along));
        if let Some(of_bias) = &mut of_bias {
            let of_bias = &mut of_bias[query * all + block.first_key..][..keys];
            of_bias.iter_mut().zip(&*grad).for_each(|(sum, grad)| *sum += *grad);
        }
        grad.iter_mut().for_each(|grad| *grad = *grad * numbers.scale);
        if let Some(slopes) = slopes.next() {
            grad.iter_mut().zip(slopes).for_each(|(grad, slope)| *grad = *grad * *slope);
        }
    }
}
