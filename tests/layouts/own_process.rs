//! `epl_testing`: tests with a process of their own.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::tensor::{DType, Device, Tensor};

#[test]
fn nothing_of_it_is_seen_here() {
    static SEEN: AtomicBool = AtomicBool::new(false);
    epl_testing::alone(|| SEEN.store(true, Ordering::Relaxed));
    assert!(!SEEN.load(Ordering::Relaxed));
}

#[test]
fn its_failure_is_a_failure_here() {
    assert!(catch_unwind(|| epl_testing::alone(|| panic!("on purpose"))).is_err());
}

#[test]
fn an_early_end_is_no_success() {
    assert!(catch_unwind(|| epl_testing::alone(|| std::process::exit(0))).is_err());
}

fn floats() -> DType {
    Tensor::<1>::ones([1], &Device::default()).dtype()
}

#[test]
fn floats_are_f64_there() {
    epl_testing::in_f64(|| assert_eq!(floats(), DType::F64));
    assert_eq!(floats(), DType::F32);
}
