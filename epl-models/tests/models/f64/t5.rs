//! The layout changes nothing of a T5, in f64.

use crate::layouts::{check_auxiliary, check_dense, check_experts};

#[test]
fn dense_models() {
    epl_testing::in_f64(|| {
        check_dense(1e-10);
    });
}

#[test]
fn models_with_experts() {
    epl_testing::in_f64(|| {
        check_experts(1e-10);
    });
}

#[test]
fn the_auxiliary_loss_is_added() {
    epl_testing::in_f64(|| {
        check_auxiliary(1e-10);
    });
}
