//! The cross-entropy of logits that every rank holds whole.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Int, Tensor};
use epl_core::model::precision::widen;

/// What a logit that does not count becomes: e to it is zero, in f32 and in f64.
const NEVER: f64 = -1e9;

/// The sum of the rows' losses, in f32 at least; a row with a negative target does not count.
///
/// # Shapes
///
/// - logits: `[rows, classes]`
/// - targets: `[rows]`
/// - output: `[1]`
pub(super) fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let ignored = targets.clone().lower_scalar(0);
    let rows = targets.mask_fill(ignored.clone(), 0).unsqueeze_dim::<2>(1);
    let chosen = log_softmax(widen(logits), 1).gather(1, rows).squeeze_dim::<1>(1);
    chosen.mask_fill(ignored, 0.0).sum().neg()
}

/// The logits without those of some classes, in f32 at least.
///
/// # Shapes
///
/// - logits, output: `[rows, classes]`
/// - without: `[rows, classes]`, true at what does not count
pub(super) fn without(logits: Tensor<2>, without: Tensor<2, Bool>) -> Tensor<2> {
    widen(logits).mask_fill(without, NEVER)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn rows_and_classes_that_do_not_count_change_nothing() {
        let device = Device::default().autodiff();
        let logits = Tensor::<2>::from_floats([[0.5, -1.0, 9.0], [2.0, 0.0, 1.0]], &device).require_grad();
        let never = Tensor::<2, Bool>::from_data([[false, false, true], [false; 3]], &device);
        let targets = Tensor::<1, Int>::from_data([1, -100], &device);
        let loss = cross_entropy(without(logits.clone(), never), targets);
        let gradient = logits.grad(&loss.backward()).unwrap().into_data();
        // Of two classes with logits 0.5 and -1 the second: ln(1 + e^1.5), and the share of the first.
        let expected = (1.0 + 1.5_f64.exp()).ln();
        assert!((f64::from(loss.into_scalar::<f32>()) - expected).abs() < 1e-6);
        let share = 1.0 / (1.0 + (-1.5_f64).exp());
        let expected = [share, -share, 0.0, 0.0, 0.0, 0.0];
        let found: Vec<f64> = gradient.iter().collect();
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}");
    }
}
