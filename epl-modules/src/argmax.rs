//! The most likely class among classes that are split over the tensor axis.

use burn::tensor::{Int, Tensor};
use epl_comm::{ReduceOp, Split, unwind};

use crate::invalid::refuse;

/// The id of the largest logit of every row; of equals, the lowest id. Collective over the group of `logits`.
///
/// Only one number and one id a row cross the axis, and ids stay integers: as floats, those above 2^24 would be
/// rounded. It is not differentiable. A NaN counts as +∞.
///
/// # Shapes
///
/// - logits: split along dim 1 of `[rows, classes]`
/// - output: `[rows]`, ids over all classes
///
/// # Errors
///
/// Unwinds with an error when the logits are split along another dim, or a peer fails.
pub fn split_argmax(logits: Split<2>) -> Tensor<1, Int> {
    check_dim(&logits);
    let (classes, start, group) = (logits.size() as i64, logits.range().start as i64, logits.group().clone());
    let logits = nan_first(logits.local().inner());
    let [rows, local] = logits.dims();
    let largest = logits.clone().max_dim(1);
    let largest = match group.size() {
        1 => largest,
        _ => group.all_reduce(largest, ReduceOp::Max).unwrap_or_else(|error| unwind(error)),
    };
    let below = logits.equal(largest).bool_not();
    let ids = Tensor::<1, Int>::arange(start..start + local as i64, &below.device());
    // The lowest id is the largest of the negated ones, which the ranks can reduce.
    let negated = ids.neg().unsqueeze::<2>().expand([rows, local]).mask_fill(below, 1 - classes);
    let negated = negated.max_dim(1).reshape([rows]);
    let negated = match group.size() {
        1 => negated,
        _ => group.all_reduce(negated, ReduceOp::Max).unwrap_or_else(|error| unwind(error)),
    };
    negated.neg()
}

/// Refuses logits whose rows are split.
pub(crate) fn check_dim(logits: &Split<2>) {
    if logits.dim() != 1 {
        refuse(format!("logits are compared when their classes are split, along dim 1; got dim {}", logits.dim()));
    }
}

/// Makes NaN +∞, so that it stands before every number, wherever it is: backends differ in what the largest of numbers
/// and NaN is.
pub(crate) fn nan_first(logits: Tensor<2>) -> Tensor<2> {
    let nan = logits.clone().is_nan();
    logits.mask_fill(nan, f64::INFINITY)
}
