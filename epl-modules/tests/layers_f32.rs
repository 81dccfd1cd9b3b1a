//! No split of the tensor axis changes what a layer computes, in f32 to 1e-5; and it is what Burn's layer computes.

mod layers;

use layers::{against_burn, cases};

const LIMIT: f64 = 1e-5;

#[test]
fn column_then_row() {
    cases::column_then_row(LIMIT);
}

#[test]
fn columns_gathered() {
    cases::columns_gathered(LIMIT);
}

#[test]
fn norms_and_replicated() {
    cases::norms_and_replicated(LIMIT);
}

#[test]
fn embedding_with_tied_head() {
    cases::embedding_with_tied_head(LIMIT);
}

#[test]
fn cross_entropy() {
    cases::cross_entropy(LIMIT);
}

#[test]
fn argmax() {
    cases::argmax(LIMIT);
}

#[test]
fn self_attention() {
    cases::self_attention(LIMIT);
}

#[test]
fn cross_attention_with_bias() {
    cases::cross_attention_with_bias(LIMIT);
}

#[test]
fn parallel_mlp() {
    cases::parallel_mlp(LIMIT);
}

#[test]
fn burns_linear() {
    against_burn::linear(LIMIT);
}

#[test]
fn burns_norms() {
    against_burn::norms(LIMIT);
}

#[test]
fn burns_embedding() {
    against_burn::embedding(LIMIT);
}

#[test]
fn burns_cross_entropy() {
    against_burn::cross_entropy(LIMIT);
}

#[test]
fn burns_attention() {
    against_burn::attention(LIMIT);
}
