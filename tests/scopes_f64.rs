//! Scopes never change the mathematics: in f64, all errors are at most 1e-10.
//!
//! A binary of its own, since the element type of a device is set once for a process.

mod scopes;

use burn::tensor::{Device, FloatDType};

#[test]
fn a_model_in_scopes_equals_the_plain_one() {
    Device::default().configure(FloatDType::F64).expect("no tensor was made before");
    scopes::all(1e-10);
}
