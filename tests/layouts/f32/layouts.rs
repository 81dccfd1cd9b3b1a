//! The layout never changes the mathematics: in f32, errors of loss, gradients and norm are at most 1e-5.

use epl::config::{PipelineStrategy, ZeroLevel};

use crate::parity::{Case, Layout, dense, layout, moe, train, train_as};

const BOUND: f64 = 1e-5;

/// In f32, parameters and state are left out: three steps of Adam amplify what rounding left in a gradient.
fn assert_parity(case: &Case, under: Layout) {
    let mut got = train(case, under);
    let mut expected = train(case, layout(1, 1, 1, 1));
    got.reports.truncate(1);
    expected.reports.truncate(1);
    let (got_report, expected_report) = (&got.reports[0], &expected.reports[0]);
    let error = |a: f64, b: f64| (a - b).abs() / b.abs();
    assert!(error(got_report.loss, expected_report.loss) <= BOUND, "{under:?} loss");
    assert!(error(got_report.grad_norm, expected_report.grad_norm) <= BOUND, "{under:?} norm");
    let (name, error) = epl::testing::largest_error(&got.gradients, &expected.gradients);
    assert!(error <= BOUND, "{under:?}: gradient of {name}: {error:.1e}");
}

#[test]
fn data_2() {
    assert_parity(&moe(), layout(2, 1, 1, 1));
}

#[test]
fn data_4_accumulates() {
    assert_parity(&moe(), layout(4, 1, 1, 4));
}

#[test]
fn tensor_2() {
    assert_parity(&moe(), layout(1, 2, 1, 1));
}

#[test]
fn tensor_4_dense() {
    assert_parity(&dense(), layout(1, 4, 1, 1));
}

#[test]
fn expert_2() {
    assert_parity(&moe(), layout(2, 1, 2, 1));
}

#[test]
fn data_2_tensor_2() {
    assert_parity(&moe(), layout(2, 2, 1, 1));
}

#[test]
fn data_4_expert_2() {
    assert_parity(&moe(), layout(4, 1, 2, 1));
}

#[test]
fn one_run_equals_another_to_the_bit() {
    for layout in [layout(2, 1, 2, 1), layout(2, 2, 1, 2)] {
        let (a, b) = (train(&moe(), layout), train(&moe(), layout));
        assert_eq!(a.reports, b.reports);
        assert_eq!(a.parameters, b.parameters);
        assert_eq!(a.state, b.state);
    }
}

/// What is sent is half as long, which `train_as` compares with the list of the step.
#[test]
fn gradients_travel_in_16_bits() {
    for (zero, stages) in [(ZeroLevel::Off, 1), (ZeroLevel::V1, 1), (ZeroLevel::V2, 2)] {
        let layout = layout(2, 1, 1, 2).zero(zero).stages(stages, 1, PipelineStrategy::PreferBackward);
        let mut config = layout.config();
        config.communication.fp16 = true;
        assert!(train_as(&dense(), layout, &config).reports.iter().all(|report| report.loss.is_finite()));
    }
}
