//! The loss in tensor operations, for backends that are not host memory.

use burn::tensor::{Bool, IndexingUpdateOp, Int, Tensor};
use epl_comm::ReduceOp;

use super::classes::Classes;

/// What backward needs.
pub(super) struct Saved {
    /// e^(x − m), `[rows, local classes]`
    exponentials: Tensor<2>,
    /// Σ e^(x − m) over all classes, `[rows, 1]`
    sums: Tensor<2>,
    /// The target's column among this rank's classes, and whether it is one of them, `[rows, 1]`
    columns: Tensor<2, Int>,
    foreign: Tensor<2, Bool>,
    /// Whether the row does not count, `[rows, 1]`
    ignored: Tensor<2, Bool>,
    classes: Classes,
}

/// Computes the loss.
///
/// # Shapes
///
/// - logits: `[rows, local classes]`, targets: `[rows]`
/// - output: `[1]`
pub(super) fn forward(logits: Tensor<2>, targets: Tensor<1, Int>, classes: Classes) -> (Tensor<1>, Saved) {
    let rows = logits.dims()[0];
    let targets = targets.inner().reshape([rows, 1]);
    let (start, end) = (classes.mine.start as i64, classes.mine.end as i64);
    let ignored = targets.clone().equal_scalar(classes.ignore_index);
    let outside = targets.clone().lower_scalar(start).bool_or(targets.clone().greater_equal_scalar(end));
    let foreign = outside.bool_or(ignored.clone());
    let columns = targets.sub_scalar(start).mask_fill(foreign.clone(), 0);

    let largest = classes.reduce(logits.clone().max_dim(1), ReduceOp::Max);
    let shifted = logits - largest;
    let exponentials = shifted.clone().exp();
    let target = shifted.clone().gather(1, columns.clone()).mask_fill(foreign.clone(), 0.0);
    let numbers = Tensor::cat(vec![exponentials.clone().sum_dim(1), target, shifted.sum_dim(1)], 1);
    let numbers = classes.reduce(numbers, ReduceOp::Sum);

    let sums = numbers.clone().narrow(1, 0, 1);
    let (on, off) = (1.0 - classes.smoothing, classes.smoothing / classes.total as f64);
    let losses = sums.clone().log() - numbers.clone().narrow(1, 1, 1) * on - numbers.narrow(1, 2, 1) * off;
    let loss = losses.mask_fill(ignored.clone(), 0.0).sum();
    (loss, Saved { exponentials, sums, columns, foreign, ignored, classes })
}

impl Saved {
    /// The gradient of the logits: (softmax − smoothed target) · grad; zero in rows that do not count.
    pub(super) fn backward(self, grad: Tensor<1>) -> Tensor<2> {
        let off = self.classes.smoothing / self.classes.total as f64;
        let smoothed = self.exponentials / self.sums.clone() - off;
        let on = self.sums.full_like(self.classes.smoothing - 1.0).mask_fill(self.foreign, 0.0);
        let difference = smoothed.scatter(1, self.columns, on, IndexingUpdateOp::Add);
        let shape = difference.dims();
        difference.mask_fill(self.ignored.expand(shape), 0.0) * grad.reshape([1, 1])
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Int, Tensor};

    use super::super::classes::Classes;
    use super::super::rows;

    #[test]
    fn both_paths_agree() {
        let outcome = epl_comm::testing::run_ranks(2, |group| {
            let device = Device::flex();
            let mut worst = 0f32;
            for smoothing in [0.0, 0.1] {
                let mine = epl_comm::shard_range(37, 2, group.rank());
                let classes =
                    Classes { total: 37, mine: mine.clone(), group: group.clone(), smoothing, ignore_index: -100 };
                let logits = Tensor::<2>::random([19, mine.len()], Distribution::Normal(0.0, 3.0), &device);
                let ids: Vec<i64> = (0..19).map(|row| if row % 5 == 3 { -100 } else { row * 7 % 37 }).collect();
                let targets = Tensor::<1, Int>::from_data(ids.as_slice(), &device);
                let grad = Tensor::<1>::from_floats([0.7], &device);
                let (a, saved_a) = rows::forward::<f32>(logits.clone(), targets.clone(), classes.clone());
                let (b, saved_b) = super::forward(logits, targets, classes);
                let gradient = saved_a.backward::<f32>(grad.clone()) - saved_b.backward(grad);
                worst = worst.max(((a - b.clone()) / b).abs().into_scalar::<f32>());
                worst = worst.max(gradient.abs().max().into_scalar::<f32>());
            }
            worst
        });
        assert!(outcome.iter().all(|worst| *worst < 1e-5), "{outcome:?}");
    }
}
