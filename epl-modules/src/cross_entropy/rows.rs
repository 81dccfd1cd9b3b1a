//! The loss in host memory: the logits' own buffer becomes the exponentials, then the gradient.

use burn::tensor::Tensor;
use epl_comm::ReduceOp;
use multiversion::multiversion;

use super::classes::Classes;
use super::targets::{MixedTargets, Targets};
use crate::host::{self, Owned, Real, View, map_sum, max_of, sum_of};
use crate::invalid::refuse;

/// What backward needs.
pub(super) struct Saved {
    /// e^(x − m), `[rows, local classes]`
    exponentials: Tensor<2>,
    /// Σ e^(x − m) over all classes, `[rows, 1]`
    sums: Tensor<2>,
    targets: Vec<Target>,
    classes: Classes,
}

/// What a row's target is to this rank.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Target {
    /// Whether the row counts.
    counts: bool,
    /// The columns of those of its classes that are this rank's, with their shares.
    mine: [Option<(usize, f64)>; 2],
}

const IGNORED: Target = Target { counts: false, mine: [None; 2] };

fn read_targets(targets: Targets, classes: &Classes) -> Vec<Target> {
    let column = |row: usize, id: i64| match usize::try_from(id) {
        Ok(id) if classes.mine.contains(&id) => Some(id - classes.mine.start),
        Ok(id) if id < classes.total => None,
        _ => refuse(classes.unknown(row, id)),
    };
    let only = |(row, id): (usize, i64)| match id == classes.ignore_index {
        true => IGNORED,
        false => Target { counts: true, mine: [column(row, id).map(|column| (column, 1.0)), None] },
    };
    let first: Vec<Target> = targets.classes.into_data().iter::<i64>().enumerate().map(only).collect();
    let Some(MixedTargets { others, shares }) = targets.mixed else { return first };
    let (others, shares) = (others.into_data(), shares.into_data());
    let with_other = |(row, ((target, id), share)): (usize, ((Target, i64), f64))| {
        if !target.counts {
            return target;
        }
        if !(0.0..=1.0).contains(&share) {
            refuse(format!("the share of the first class of row {row} is {share}; it should be from 0 to 1"));
        }
        let other = column(row, id).map(|column| (column, 1.0 - share));
        let mine = [target.mine[0].map(|(column, _)| (column, share)), other];
        // A class without a share would count zero times, which of -∞ is not zero.
        Target { mine: mine.map(|class| class.filter(|(_, share)| *share > 0.0)), ..target }
    };
    let all = first.into_iter().zip(others.iter::<i64>()).zip(shares.iter::<f64>());
    all.enumerate().map(with_other).collect()
}

/// The numbers of a row that are summed over the ranks: Σ e^(x − m), x[target] − m by the shares of its classes, Σ (x − m).
const NUMBERS: usize = 3;

/// Computes the loss.
///
/// # Shapes
///
/// - logits: `[rows, local classes]`, targets: `[rows]`
/// - output: `[1]`
pub(super) fn forward<T: Real>(logits: Tensor<2>, targets: Targets, classes: Classes) -> (Tensor<1>, Saved) {
    let device = logits.device();
    let [rows, columns] = logits.dims();
    let targets = read_targets(targets, &classes);
    let per_task = host::rows_a_task(columns);

    let mut logits = Owned::<T>::take(logits);
    let data = logits.slice_mut();
    let mut largest = vec![T::ZERO; rows];
    host::for_blocks2((&mut *data, per_task * columns), (&mut largest, per_task), |_, data, largest| {
        maxima(data, columns, largest);
    });
    let largest = View::<T>::new(classes.reduce(host::tensor(largest, [rows, 1], &device), ReduceOp::Max));

    let mut numbers = vec![T::ZERO; rows * NUMBERS];
    let smoothed = classes.smoothing > 0.0;
    host::for_blocks2((data, per_task * columns), (&mut numbers, per_task * NUMBERS), |block, data, numbers| {
        let first = block * per_task;
        let (largest, targets) = (&largest.slice()[first..], &targets[first..]);
        exponentiate(data, columns, largest, targets, smoothed, numbers);
    });
    let numbers = View::<T>::new(classes.reduce(host::tensor(numbers, [rows, NUMBERS], &device), ReduceOp::Sum));

    let (on, off) = (1.0 - classes.smoothing, classes.smoothing / classes.total as f64);
    let mut loss = 0.0;
    for (numbers, _) in numbers.slice().chunks_exact(NUMBERS).zip(&targets).filter(|(_, target)| target.counts) {
        loss += numbers[0].wide().ln() - on * numbers[1].wide() - off * numbers[2].wide();
    }
    let sums = numbers.slice().iter().step_by(NUMBERS).copied().collect();
    let saved = Saved {
        exponentials: logits.into_tensor(&device),
        sums: host::tensor::<T, 2>(sums, [rows, 1], &device),
        targets,
        classes,
    };
    (host::tensor(vec![T::of(loss)], [1], &device), saved)
}

#[multiversion(targets = "simd")]
fn maxima<T: Real>(data: &[T], columns: usize, largest: &mut [T]) {
    for (row, largest) in data.chunks_exact(columns).zip(largest) {
        *largest = max_of(row);
    }
}

#[multiversion(targets = "simd")]
fn exponentiate<T: Real>(
    data: &mut [T],
    columns: usize,
    largest: &[T],
    targets: &[Target],
    smoothed: bool,
    numbers: &mut [T],
) {
    let rows = data.chunks_exact_mut(columns).zip(numbers.chunks_exact_mut(NUMBERS));
    for ((row, numbers), (m, target)) in rows.zip(largest.iter().zip(targets)) {
        let m = *m;
        for (column, share) in target.mine.iter().flatten() {
            numbers[1] += (row[*column] - m) * T::of(*share);
        }
        if smoothed {
            numbers[2] = sum_of(row, row, |x, _| x - m);
        }
        numbers[0] = map_sum(row, |x| (x - m).exp());
    }
}

impl Saved {
    /// The gradient of the logits: (softmax − smoothed target) · grad; zero in rows that do not count.
    pub(super) fn backward<T: Real>(self, grad: Tensor<1>) -> Tensor<2> {
        let device = self.exponentials.device();
        let columns = self.exponentials.dims()[1];
        let grad = View::<T>::new(grad).slice()[0];
        let sums = View::<T>::new(self.sums);
        let off = T::of(self.classes.smoothing / self.classes.total as f64) * grad;
        let on = T::of(1.0 - self.classes.smoothing) * grad;
        let mut data = Owned::<T>::take(self.exponentials);
        let per_task = host::rows_a_task(columns);
        host::for_blocks(data.slice_mut(), per_task * columns, |block, data| {
            let first = block * per_task;
            for (index, row) in data.chunks_exact_mut(columns).enumerate() {
                let target = self.targets[first + index];
                if !target.counts {
                    row.fill(T::ZERO);
                    continue;
                }
                scale_shift(row, grad / sums.slice()[first + index], off);
                for (column, share) in target.mine.into_iter().flatten() {
                    row[column] = row[column] - on * T::of(share);
                }
            }
        });
        data.into_tensor(&device)
    }
}

#[multiversion(targets = "simd")]
fn scale_shift<T: Real>(row: &mut [T], scale: T, shift: T) {
    row.iter_mut().for_each(|x| *x = *x * scale - shift);
}
