//! Layers of a transformer: no layout changes what they compute, in f32 to 1e-5; the forms of known models; generation.

use crate::transformer::{generation, layout, reference};

const LIMIT: f64 = 1e-5;

#[test]
fn layouts_equal_one_rank() {
    layout::layouts_equal_one_rank(LIMIT);
}

#[test]
fn bert() {
    reference::bert(LIMIT);
}

#[test]
fn gpt2() {
    reference::gpt2(LIMIT);
}

#[test]
fn llama() {
    reference::llama(LIMIT);
}

#[test]
fn qwen3() {
    reference::qwen3(LIMIT);
}

#[test]
fn gemma2() {
    reference::gemma2(LIMIT);
}

#[test]
fn first_decoder() {
    reference::first_decoder(LIMIT);
}

#[test]
fn token_by_token() {
    generation::token_by_token(LIMIT);
}
