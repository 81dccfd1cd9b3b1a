//! No layout changes what a model computes: in f64, all errors are at most 1e-10.
//!
//! A binary of its own, since the element type of a device is set once for a process.

#[path = "../layouts/mod.rs"]
mod layouts;

mod bert;
mod resnet;
mod t5;

use std::sync::Once;

use burn::tensor::{Device, FloatDType};

/// The element type of all that this binary makes.
fn in_f64() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| Device::default().configure(FloatDType::F64).expect("no tensor was made before"));
}
