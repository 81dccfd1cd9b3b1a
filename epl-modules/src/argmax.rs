//! The most likely class among classes that are split over the tensor axis.

use burn::tensor::{Int, Tensor, TensorData};
use epl_comm::{ReduceOp, Split, unwind};

use crate::host::{self, HostFloat, Real, View, host_float, map_rows, max_of};
use crate::invalid::refuse;

/// The id of the largest logit of every row; of equals, the lowest id. Collective over the group of `logits`.
///
/// Only one number and one id a row cross the axis, and ids stay integers: as floats, those above 2^24 would be
/// rounded. It is not differentiable. A NaN counts as +∞.
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_comm::sliced;
/// use epl_core::testing;
/// use epl_modules::split_argmax;
///
/// let found = testing::run((1, 2, 1), |epl| {
///     let logits = Tensor::<2>::from_floats([[0.0, 1.0, 3.0], [5.0, 2.0, 5.0]], epl.place().device());
///     let logits = sliced(logits, 1, epl.context().tensor()); // two classes on one rank, one on the other
///     Ok(split_argmax(logits).into_data().iter::<i64>().collect::<Vec<_>>())
/// });
/// assert_eq!(found, [[2, 0], [2, 0]]);
/// ```
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
    let logits = logits.local().inner();
    let logits = if host_float(&logits).is_some() { logits } else { nan_first(logits) };
    let largest = row_maxima(logits.clone());
    let largest = match group.size() {
        1 => largest,
        _ => group.all_reduce(largest, ReduceOp::Max).unwrap_or_else(|error| unwind(error)),
    };
    // The lowest id is the largest of the negated ones, which the ranks can reduce.
    let negated = negated_firsts(logits, largest, start, 1 - classes);
    let negated = match group.size() {
        1 => negated,
        _ => group.all_reduce(negated, ReduceOp::Max).unwrap_or_else(|error| unwind(error)),
    };
    negated.neg()
}

/// Of each row the largest element; a NaN in host memory counts as +∞, elsewhere there is none.
///
/// # Shapes
///
/// - logits: `[rows, classes]`
/// - output: `[rows, 1]`
fn row_maxima(logits: Tensor<2>) -> Tensor<2> {
    fn on_host<T: Real>(logits: Tensor<2>) -> Tensor<2> {
        let device = logits.device();
        let largest = of_rows(logits, |_, row: &[T]| match row.iter().any(|x| x.is_nan()) {
            true => T::INFINITY,
            false => max_of(row),
        });
        let shape = [largest.len(), 1];
        host::tensor(largest, shape, &device)
    }
    match host_float(&logits) {
        Some(HostFloat::Single) => on_host::<f32>(logits),
        Some(HostFloat::Double) => on_host::<f64>(logits),
        None => logits.max_dim(1),
    }
}

/// Of each row the negated id of the first class that is as large as `largest`; where none of this rank's is, `nowhere`.
///
/// # Shapes
///
/// - logits: `[rows, classes]`, largest: `[rows, 1]`; the first class has the id `start`
/// - output: `[rows]`
fn negated_firsts(logits: Tensor<2>, largest: Tensor<2>, start: i64, nowhere: i64) -> Tensor<1, Int> {
    fn on_host<T: Real>(logits: Tensor<2>, largest: Tensor<2>, start: i64, nowhere: i64) -> Tensor<1, Int> {
        let (device, largest) = (logits.device(), View::<T>::new(largest));
        let largest = largest.slice();
        let negated = of_rows(logits, |number, row: &[T]| {
            let largest = largest[number];
            let first = row.iter().position(|x| *x >= largest || x.is_nan());
            first.map_or(nowhere, |first| -(start + first as i64))
        });
        let shape = [negated.len()];
        Tensor::from_data(TensorData::new(negated, shape), &device)
    }
    match host_float(&logits) {
        Some(HostFloat::Single) => on_host::<f32>(logits, largest, start, nowhere),
        Some(HostFloat::Double) => on_host::<f64>(logits, largest, start, nowhere),
        None => {
            let [rows, local] = logits.dims();
            let below = logits.equal(largest).bool_not();
            let ids = Tensor::<1, Int>::arange(start..start + local as i64, &below.device());
            let negated = ids.neg().unsqueeze::<2>().expand([rows, local]).mask_fill(below, nowhere);
            negated.max_dim(1).reshape([rows])
        }
    }
}

/// What `f` gives for each row and its number, on the threads of the current pool.
fn of_rows<T: Real, R: Send>(logits: Tensor<2>, f: impl Fn(usize, &[T]) -> R + Sync + Send) -> Vec<R> {
    let ([rows, classes], logits) = (logits.dims(), View::<T>::new(logits));
    let logits = logits.slice();
    map_rows(rows, classes, |number| f(number, &logits[number * classes..][..classes]))
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
