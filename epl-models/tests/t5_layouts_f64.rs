//! The layout changes nothing of a T5, in f64.

mod layouts;

use std::sync::Once;

use burn::tensor::{Device, FloatDType};
use layouts::{check_auxiliary, check_dense, check_experts};

/// The device of a process has one default type, chosen before the first tensor.
fn configure() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| Device::default().configure(FloatDType::F64).expect("no tensor was made before"));
}

#[test]
fn dense_models() {
    configure();
    check_dense(1e-10);
}

#[test]
fn models_with_experts() {
    configure();
    check_experts(1e-10);
}

#[test]
fn the_auxiliary_loss_is_added() {
    configure();
    check_auxiliary(1e-10);
}
