//! Layers of a transformer: no layout changes what they compute, in f64 to 1e-10; the forms of known models; generation.

mod transformer;

use std::sync::Once;

use burn::tensor::{Device, FloatDType};
use transformer::{generation, layout, reference};

const LIMIT: f64 = 1e-10;

/// One default for the whole binary.
fn configure() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| Device::default().configure(FloatDType::F64).expect("no tensor was made before"));
}

#[test]
fn layouts_equal_one_rank() {
    configure();
    layout::layouts_equal_one_rank(LIMIT);
}

#[test]
fn bert() {
    configure();
    reference::bert(LIMIT);
}

#[test]
fn gpt2() {
    configure();
    reference::gpt2(LIMIT);
}

#[test]
fn llama() {
    configure();
    reference::llama(LIMIT);
}

#[test]
fn first_decoder() {
    configure();
    reference::first_decoder(LIMIT);
}

#[test]
fn token_by_token() {
    configure();
    generation::token_by_token(LIMIT);
}
