//! Layers of a transformer: no layout changes what they compute, in f64 to 1e-10; the forms of known models; generation.

use crate::transformer::{generation, layout, reference};

const LIMIT: f64 = 1e-10;

#[test]
fn layouts_equal_one_rank() {
    epl_testing::in_f64(|| {
        layout::layouts_equal_one_rank(LIMIT);
    });
}

#[test]
fn bert() {
    epl_testing::in_f64(|| {
        reference::bert(LIMIT);
    });
}

#[test]
fn gpt2() {
    epl_testing::in_f64(|| {
        reference::gpt2(LIMIT);
    });
}

#[test]
fn llama() {
    epl_testing::in_f64(|| {
        reference::llama(LIMIT);
    });
}

#[test]
fn qwen3() {
    epl_testing::in_f64(|| {
        reference::qwen3(LIMIT);
    });
}

#[test]
fn swin_v2() {
    epl_testing::in_f64(|| {
        reference::swin_v2(LIMIT);
    });
}

#[test]
fn gemma2() {
    epl_testing::in_f64(|| {
        reference::gemma2(LIMIT);
    });
}

#[test]
fn first_decoder() {
    epl_testing::in_f64(|| {
        reference::first_decoder(LIMIT);
    });
}

#[test]
fn token_by_token() {
    epl_testing::in_f64(|| {
        generation::token_by_token(LIMIT);
    });
}
