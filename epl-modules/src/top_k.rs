//! The most likely classes among classes that are split over the tensor axis, and whether a target is one of them.
//!
//! Ids stay integers, as in [`argmax`](crate::argmax). Of equal logits, the one of the lowest id stands first; a NaN
//! counts as +∞.

use burn::tensor::kind::{Autodiff, Numeric};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use epl_comm::{ProcessGroup, ReduceOp, Split, shard_range, unwind};

use crate::argmax::{check_dim, nan_first};
use crate::invalid::refuse;

/// The ids of the `k` largest logits of every row, the largest first. Collective over the group of `logits`.
///
/// Only k numbers and k ids a rank and row cross the axis. It goes over the logits k times, and is not differentiable.
///
/// ```
/// use burn::tensor::{Int, Tensor};
/// use epl_comm::sliced;
/// use epl_core::testing;
/// use epl_modules::{split_in_top_k, split_top_k};
///
/// let found = testing::run((1, 2, 1), |epl| {
///     let device = epl.place().device();
///     let logits = Tensor::<2>::from_floats([[0.0, 1.0, 3.0], [5.0, 2.0, 5.0]], device);
///     let logits = sliced(logits, 1, epl.context().tensor());
///     let two = split_top_k(logits.clone(), 2).into_data().iter::<i64>().collect::<Vec<_>>();
///     let right = split_in_top_k(logits, Tensor::<1, Int>::from_ints([1, 1], device), 2);
///     Ok((two, right.into_data().iter::<bool>().collect::<Vec<_>>()))
/// });
/// assert_eq!(found[0], (vec![2, 1, 0, 2], vec![true, false]));
/// ```
///
/// # Shapes
///
/// - logits: split along dim 1 of `[rows, classes]`
/// - output: `[rows, k]`, ids over all classes
///
/// # Errors
///
/// Unwinds with an error when `k` is 0 or more than there are classes, the logits are split along another dim, or a
/// peer fails.
pub fn split_top_k(logits: Split<2>, k: usize) -> Tensor<2, Int> {
    let classes = LocalLogits::new(logits, k);
    let group = classes.group;
    // The first rank has the most classes. A rank with fewer fills up with an id behind all others.
    let widest = shard_range(classes.total, group.size(), 0).len();
    let nobody = classes.total as i64;
    let (values, ids) = largest(nan_first(classes.logits), classes.ids, k.min(widest), nobody);
    if group.size() == 1 {
        return ids;
    }
    let values = group.all_gather(values, 1).unwrap_or_else(|error| unwind(error));
    let ids = group.all_gather(ids, 1).unwrap_or_else(|error| unwind(error));
    largest(values, ids, k, nobody).1
}

/// Whether the target of every row is one of its `k` largest logits. Collective over the group of `logits`.
///
/// Only one logit and one count a row cross the axis, whatever k is. A target whose logit is NaN is never one of them,
/// nor is a negative one, such as the ignored index of a loss: it is no class.
///
/// ```
/// # use burn::tensor::{Int, Tensor};
/// # use epl_comm::sliced;
/// # use epl_core::testing;
/// use epl_modules::split_in_top_k;
///
/// testing::run((1, 2, 1), |epl| {
///     let device = epl.place().device();
///     let logits = Tensor::<2>::from_floats([[0.0, 1.0, 3.0], [5.0, 2.0, 5.0], [5.0, 2.0, 5.0]], device);
///     let logits = sliced(logits, 1, epl.context().tensor()); // two classes on one rank, one on the other
///     let targets = Tensor::<1, Int>::from_ints([1, 1, -100], device);
///     let right = split_in_top_k(logits, targets, 2).into_data().to_vec::<bool>().unwrap();
///     assert_eq!(right, [true, false, false]); // the second of two, the third of three, no class
///     Ok(())
/// });
/// ```
///
/// # Shapes
///
/// - logits: split along dim 1 of `[rows, classes]`
/// - targets: `[rows]`, ids over all classes, the same on every rank
/// - output: `[rows]`
///
/// # Errors
///
/// Unwinds with an error when `k` is 0 or more than there are classes, there are more or fewer targets than rows, a
/// target is beyond the classes, the logits are split along another dim, or a peer fails.
pub fn split_in_top_k(logits: Split<2>, targets: Tensor<1, Int>, k: usize) -> Tensor<1, Bool> {
    let LocalLogits { logits, ids, total, first, group } = LocalLogits::new(logits, k);
    let [rows, local] = logits.dims();
    let targets = read_targets(targets, rows, total);
    let device = logits.device();
    let column =
        |values: Vec<i64>| Tensor::<2, Int>::from_data(TensorData::new(values, [rows, 1]), (&device, ids.dtype()));
    let mask = |values: Vec<bool>| Tensor::<2, Bool>::from_data(TensorData::new(values, [rows, 1]), &device);

    // The target's logit, from the rank that has it.
    let place = |target: &i64| usize::try_from(target - first).ok().filter(|place| *place < local);
    let places = targets.iter().map(|target| place(target).unwrap_or(0) as i64).collect();
    let foreign = targets.iter().map(|target| place(target).is_none()).collect();
    let own = reduce(&group, logits.clone().gather(1, column(places)).mask_fill(mask(foreign), 0.0));

    // The target itself is the first of those that are not before it. If its logit is NaN, all are before it.
    let logits = nan_first(logits);
    let tied = logits.clone().equal(own.clone()).bool_and(ids.clone().greater_equal(column(targets.clone())));
    let before = reduce(&group, logits.lower(own).bool_or(tied).bool_not().int().sum_dim(1));
    let known = mask(targets.iter().map(|target| *target >= 0).collect());
    before.lower_elem(k as i64).bool_and(known).reshape([rows])
}

/// Whether the target of every row is its largest logit: [`split_in_top_k`] with a k of 1.
///
/// ```
/// # use burn::tensor::{Int, Tensor};
/// # use epl_comm::sliced;
/// # use epl_core::testing;
/// use epl_modules::split_equal;
///
/// testing::run((1, 2, 1), |epl| {
///     let device = epl.place().device();
///     let logits = sliced(Tensor::<2>::from_floats([[0.0, 1.0, 3.0], [5.0, 2.0, 5.0]], device), 1, epl.context().tensor());
///     let right = split_equal(logits, Tensor::<1, Int>::from_ints([2, 2], device));
///     assert_eq!(right.into_data().to_vec::<bool>().unwrap(), [true, false]); // of equal logits the lowest id is the largest
///     Ok(())
/// });
/// ```
///
/// # Shapes
///
/// - logits: split along dim 1 of `[rows, classes]`
/// - targets: `[rows]`, ids over all classes, the same on every rank
/// - output: `[rows]`
///
/// # Errors
///
/// As [`split_in_top_k`].
pub fn split_equal(logits: Split<2>, targets: Tensor<1, Int>) -> Tensor<1, Bool> {
    split_in_top_k(logits, targets, 1)
}

/// This rank's classes.
struct LocalLogits {
    /// `[rows, local classes]`
    logits: Tensor<2>,
    /// `[rows, local classes]`
    ids: Tensor<2, Int>,
    /// How many there are on all ranks.
    total: usize,
    /// The id of this rank's first.
    first: i64,
    group: ProcessGroup,
}

impl LocalLogits {
    /// Takes logits apart, of which the `k` largest are to be found.
    fn new(logits: Split<2>, k: usize) -> Self {
        check_dim(&logits);
        let (total, range, group) = (logits.size(), logits.range(), logits.group().clone());
        if k == 0 || k > total {
            refuse(format!("the {k} largest of {total} logits: k must be at least 1 and at most {total}"));
        }
        let logits = logits.local().inner();
        let (shape, first) = (logits.dims(), range.start as i64);
        let ids = Tensor::<1, Int>::arange(first..range.end as i64, &logits.device());
        Self { ids: ids.unsqueeze::<2>().expand(shape), logits, total, first, group }
    }
}

/// The sum over the ranks.
fn reduce<K: Numeric + Autodiff>(group: &ProcessGroup, numbers: Tensor<2, K>) -> Tensor<2, K> {
    match group.size() {
        1 => numbers,
        _ => group.all_reduce(numbers, ReduceOp::Sum).unwrap_or_else(|error| unwind(error)),
    }
}

/// Reads the targets on the host, where they are checked.
fn read_targets(targets: Tensor<1, Int>, rows: usize, classes: usize) -> Vec<i64> {
    let targets: Vec<i64> = targets.into_data().iter().collect();
    if targets.len() != rows {
        refuse(format!("{rows} rows of logits got {} targets: give one a row", targets.len()));
    }
    if let Some((row, target)) = targets.iter().enumerate().find(|(_, target)| **target >= classes as i64) {
        refuse(format!("the target of row {row} is {target}, but there are {classes} classes, from 0"));
    }
    targets
}

/// The `k` largest values of every row with their ids, the largest first, of equals the lowest id first. Where a row
/// has no more, -∞ and `nobody`.
///
/// # Shapes
///
/// - values, ids: `[rows, any]`
/// - output: `[rows, k]`
fn largest(mut values: Tensor<2>, ids: Tensor<2, Int>, k: usize, nobody: i64) -> (Tensor<2>, Tensor<2, Int>) {
    let mut taken = values.zeros_like().greater_elem(0.0);
    let (mut found_values, mut found_ids) = (Vec::with_capacity(k), Vec::with_capacity(k));
    for _ in 0..k {
        let largest = values.clone().max_dim(1);
        // What is taken is -∞ now, as others may be.
        let others = values.clone().equal(largest.clone()).bool_not().bool_or(taken.clone());
        let id = ids.clone().mask_fill(others, nobody).min_dim(1);
        let chosen = ids.clone().equal(id.clone());
        values = values.mask_fill(chosen.clone(), f64::NEG_INFINITY);
        taken = taken.bool_or(chosen);
        found_values.push(largest);
        found_ids.push(id);
    }
    (Tensor::cat(found_values, 1), Tensor::cat(found_ids, 1))
}
