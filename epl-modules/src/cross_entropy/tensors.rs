//! The loss in tensor operations, for backends that are not host memory.
//!
//! Reading the targets would wait for the device. So a row whose target is neither a class nor ignored has a NaN for its
//! sum, which makes the loss and the row's gradient NaN.

use burn::tensor::{Bool, IndexingUpdateOp, Int, Tensor};
use epl_comm::ReduceOp;
use epl_core::model::precision::cast;

use super::classes::Classes;
use super::targets::{MixedTargets, Targets};

/// What backward needs.
pub(super) struct Saved {
    /// e^(x − m), `[rows, local classes]`
    exponentials: Tensor<2>,
    /// Σ e^(x − m) over all classes, NaN where a target is unknown, `[rows, 1]`
    sums: Tensor<2>,
    /// The columns of the targets among this rank's classes, `[rows, targets of a row]`
    columns: Tensor<2, Int>,
    /// Which of them are not this rank's, or have no share
    foreign: Tensor<2, Bool>,
    /// Their shares, where a row has two
    shares: Option<Tensor<2>>,
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
pub(super) fn forward(logits: Tensor<2>, targets: Targets, classes: Classes) -> (Tensor<1>, Saved) {
    let rows = logits.dims()[0];
    let first = targets.classes.inner().reshape([rows, 1]);
    let ignored = first.clone().equal_scalar(classes.ignore_index);
    let (targets, shares) = match targets.mixed {
        None => (first, None),
        Some(MixedTargets { others, shares }) => {
            let shares = cast(shares.inner(), logits.dtype()).reshape([rows, 1]);
            let shares = Tensor::cat(vec![shares.clone(), shares.neg() + 1.0], 1);
            (Tensor::cat(vec![first, others.inner().reshape([rows, 1])], 1), Some(shares))
        }
    };
    let of_row = |x: Tensor<2, Bool>| if rows == 0 { x } else { x.expand(targets.dims()) };
    let outside = |first: usize, end: usize| {
        targets.clone().lower_scalar(first as i64).bool_or(targets.clone().greater_equal_scalar(end as i64))
    };
    let unknown = match &shares {
        None => outside(0, classes.total),
        Some(_) => outside(0, classes.total).int().sum_dim(1).greater_scalar(0),
    };
    let unknown = unknown.bool_and(ignored.clone().bool_not());
    let mut foreign = outside(classes.mine.start, classes.mine.end).bool_or(of_row(ignored.clone()));
    if let Some(shares) = &shares {
        foreign = foreign.bool_or(shares.clone().equal_scalar(0.0));
    }
    // Filled first: the difference to any other number might not be one.
    let start = classes.mine.start as i64;
    let columns = targets.mask_fill(foreign.clone(), start).sub_scalar(start);

    let largest = classes.reduce(logits.clone().max_dim(1), ReduceOp::Max);
    let shifted = logits - largest;
    let exponentials = shifted.clone().exp();
    let target = shifted.clone().gather(1, columns.clone()).mask_fill(foreign.clone(), 0.0);
    let target = match &shares {
        None => target,
        Some(shares) => (target * shares.clone()).sum_dim(1),
    };
    let mut numbers = vec![exponentials.clone().sum_dim(1), target];
    // Without smoothing it would count zero times, which of -∞ is not zero.
    if classes.smoothing > 0.0 {
        numbers.push(shifted.sum_dim(1));
    }
    let numbers = classes.reduce(Tensor::cat(numbers, 1), ReduceOp::Sum);

    let number = |column: usize| numbers.clone().narrow(1, column, 1);
    let sums = number(0).mask_fill(unknown, f64::NAN);
    let (on, off) = (1.0 - classes.smoothing, classes.smoothing / classes.total as f64);
    let mut losses = sums.clone().log() - number(1) * on;
    if classes.smoothing > 0.0 {
        losses = losses - number(2) * off;
    }
    let loss = losses.mask_fill(ignored.clone(), 0.0).sum();
    (loss, Saved { exponentials, sums, columns, foreign, shares, ignored, classes })
}

impl Saved {
    /// The gradient of the logits: (softmax − smoothed target) · grad; zero in rows that do not count.
    pub(super) fn backward(self, grad: Tensor<1>) -> Tensor<2> {
        let off = self.classes.smoothing / self.classes.total as f64;
        let smoothed = self.exponentials / self.sums.clone() - off;
        let on = match self.shares {
            None => self.sums.full_like(self.classes.smoothing - 1.0),
            Some(shares) => shares * (self.classes.smoothing - 1.0),
        };
        let on = on.mask_fill(self.foreign, 0.0);
        let difference = smoothed.scatter(1, self.columns, on, IndexingUpdateOp::Add);
        let shape = difference.dims();
        if shape[0] == 0 {
            // Burn does not expand to no row.
            return difference;
        }
        difference.mask_fill(self.ignored.expand(shape), 0.0) * grad.reshape([1, 1])
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, Int, Tensor};

    use super::super::classes::Classes;
    use super::super::rows;
    use super::super::targets::{MixedTargets, Targets};

    /// Loss and gradient of a path.
    type Found = (f32, Vec<f32>);

    /// Both paths on this rank's slice of the rows `logits`: in host memory, then in tensor operations.
    fn both(group: &epl_comm::ProcessGroup, logits: &Tensor<2>, targets: &[i64], smoothing: f64) -> [Found; 2] {
        both_of(group, logits, Tensor::<1, Int>::from_data(targets, &Device::flex()).into(), smoothing)
    }

    fn both_of(group: &epl_comm::ProcessGroup, logits: &Tensor<2>, targets: Targets, smoothing: f64) -> [Found; 2] {
        let (device, total) = (Device::flex(), logits.dims()[1]);
        let mine = epl_comm::shard_range(total, group.size(), group.rank());
        let logits = logits.clone().slice([0..logits.dims()[0], mine.clone()]);
        let classes = Classes { total, mine, group: group.clone(), smoothing, ignore_index: -100 };
        let grad = Tensor::<1>::from_floats([0.7], &device);
        let found = |loss: Tensor<1>, gradient: Tensor<2>| {
            (loss.into_scalar::<f32>(), gradient.into_data().iter::<f32>().collect())
        };
        let (loss, saved) = rows::forward::<f32>(logits.clone(), targets.clone(), classes.clone());
        let on_host = found(loss, saved.backward::<f32>(grad.clone()));
        let (loss, saved) = super::forward(logits, targets, classes);
        [on_host, found(loss, saved.backward(grad))]
    }

    /// Whether two numbers are the same infinity, or close.
    fn close(a: f32, b: f32) -> bool {
        a == b || (a - b).abs() <= 1e-5 * b.abs().max(1.0)
    }

    fn assert_agree([(loss, gradient), (other, others)]: &[Found; 2]) {
        assert!(close(*loss, *other), "the loss is {loss} in host memory and {other} in tensor operations");
        let agree = gradient.iter().zip(others).all(|(a, b)| close(*a, *b));
        assert!(
            agree && gradient.len() == others.len(),
            "{gradient:?} in host memory, {others:?} in tensor operations"
        );
    }

    #[test]
    fn both_paths_agree() {
        let device = Device::flex();
        let logits = Tensor::<2>::random([19, 37], Distribution::Normal(0.0, 3.0), &device);
        let ids: Vec<i64> = (0..19).map(|row| if row % 5 == 3 { -100 } else { row * 7 % 37 }).collect();
        let logits = logits.into_data();
        epl_comm::testing::run_ranks(2, |group| {
            let logits = Tensor::<2>::from_data(logits.clone(), &device);
            [0.0, 0.1].map(|smoothing| assert_agree(&both(&group, &logits, &ids, smoothing)))
        });
    }

    /// A row's loss and gradient of two classes are those of either by their shares.
    #[test]
    fn two_classes_count_by_their_shares() {
        let device = Device::flex();
        let logits = Tensor::<2>::random([9, 11], Distribution::Normal(0.0, 3.0), &device).into_data();
        let first: Vec<i64> = (0..9).map(|row| if row == 4 { -100 } else { row * 7 % 11 }).collect();
        // The same class twice, one without a share, and one that nobody looks at.
        let second: Vec<i64> = (0..9).map(|row| if row == 4 { -3 } else { row * row * 5 % 11 }).collect();
        let shares: Vec<f32> = (0..9).map(|row| [0.25, 1.0, 0.5, 0.0][row % 4]).collect();
        epl_comm::testing::run_ranks(2, |group| {
            let logits = Tensor::<2>::from_data(logits.clone(), &device);
            let ids = |ids: &[i64]| Tensor::<1, Int>::from_data(ids, &device);
            for smoothing in [0.0, 0.1] {
                let mixed = MixedTargets { others: ids(&second), shares: Tensor::from_floats(&shares[..], &device) };
                let found = both_of(&group, &logits, Targets { classes: ids(&first), mixed: Some(mixed) }, smoothing);
                assert_agree(&found);
                let mut expected = (0.0, vec![0.0; found[0].1.len()]);
                let columns = found[0].1.len() / 9;
                for (row, share) in shares.iter().enumerate() {
                    for (classes, share) in [(&first, *share), (&second, 1.0 - share)] {
                        let mut only = vec![-100; 9];
                        only[row] = if row == 4 { -100 } else { classes[row] };
                        let (loss, gradient) = &both(&group, &logits, &only, smoothing)[0];
                        expected.0 += share * loss;
                        let own = row * columns..(row + 1) * columns;
                        expected.1[own.clone()].iter_mut().zip(&gradient[own]).for_each(|(sum, x)| *sum += share * x);
                    }
                }
                assert_agree(&[found[0].clone(), expected]);
            }
        });
    }

    /// As in PyTorch: a class that cannot be adds nothing, is an infinite loss where it is the target or has a share of
    /// it, and the gradient is softmax − target, which is finite.
    #[test]
    fn a_logit_may_be_minus_infinity() {
        for ranks in [1, 2, 3] {
            epl_comm::testing::run_ranks(ranks, |group| {
                let never = f32::NEG_INFINITY;
                let logits = Tensor::<2>::from_floats([[2.0, 1.0, never], [never, never, 3.0]], &Device::flex());
                let of = |targets: [i64; 2], smoothing: f64| {
                    let found = both(&group, &logits, &targets, smoothing);
                    assert_agree(&found);
                    assert!(found[1].1.iter().all(|x| x.is_finite()), "{found:?}");
                    found[1].0
                };
                assert!(close(of([0, 2], 0.0), 0.313_261_7));
                assert!(close(of([1, -100], 0.0), 1.313_261_7));
                assert_eq!(of([2, 2], 0.0), f32::INFINITY);
                assert_eq!(of([0, 2], 0.1), f32::INFINITY);
                assert!(close(of([-100, -100], 0.1), 0.0));
            });
        }
    }

    /// In host memory it is refused; here it must not be learned from.
    #[test]
    fn a_target_that_is_no_class_makes_the_loss_and_its_row_nan() {
        for (ranks, unknown) in [(1, 5), (1, -1), (2, 5), (2, i64::from(i32::MAX)), (2, i64::from(i32::MIN))] {
            epl_comm::testing::run_ranks(ranks, |group| {
                let device = Device::flex();
                let mine = epl_comm::shard_range(5, ranks, group.rank());
                let classes =
                    Classes { total: 5, mine: mine.clone(), group: group.clone(), smoothing: 0.0, ignore_index: -100 };
                let targets = Tensor::<1, Int>::from_data([1, unknown, -100], &device).into();
                let (loss, saved) = super::forward(Tensor::ones([3, mine.len()], &device), targets, classes);
                assert!(loss.clone().into_scalar::<f32>().is_nan(), "{loss}");
                let gradient = saved.backward(Tensor::from_floats([1.0], &device)).into_data();
                let is_nan: Vec<bool> = gradient.iter::<f32>().map(f32::is_nan).collect();
                let columns = mine.len();
                let expected: Vec<bool> = (0..3 * columns).map(|at| at / columns == 1).collect();
                assert_eq!(is_nan, expected, "{gradient}");
            });
        }
    }

    #[test]
    fn no_row_is_a_sum_of_nothing() {
        epl_comm::testing::run_ranks(2, |group| {
            let logits = Tensor::<2>::zeros([0, 5], &Device::flex());
            let found = both(&group, &logits, &[], 0.1);
            assert_agree(&found);
            assert_eq!(found[1], (0.0, Vec::new()));
        });
    }
}
