//! No split of the tensor axis changes what a layer computes, in f64 to 1e-10; and it is what Burn's layer computes.

mod layers;

use std::sync::Once;

use burn::tensor::{Device, FloatDType};
use layers::{against_burn, batch_norm, cases, conv, replicas};

const LIMIT: f64 = 1e-10;

/// One default for the whole binary.
fn configure() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| Device::default().configure(FloatDType::F64).expect("no tensor was made before"));
}

#[test]
fn column_then_row() {
    configure();
    cases::column_then_row(LIMIT);
}

#[test]
fn columns_gathered() {
    configure();
    cases::columns_gathered(LIMIT);
}

#[test]
fn norms_and_replicated() {
    configure();
    cases::norms_and_replicated(LIMIT);
}

#[test]
fn embedding_with_tied_head() {
    configure();
    cases::embedding_with_tied_head(LIMIT);
}

#[test]
fn cross_entropy() {
    configure();
    cases::cross_entropy(LIMIT);
}

#[test]
fn argmax() {
    configure();
    cases::argmax(LIMIT);
}

#[test]
fn self_attention() {
    configure();
    cases::self_attention(LIMIT);
}

#[test]
fn cross_attention_with_bias() {
    configure();
    cases::cross_attention_with_bias(LIMIT);
}

#[test]
fn parallel_mlp() {
    configure();
    cases::parallel_mlp(LIMIT);
}

#[test]
fn burns_linear() {
    configure();
    against_burn::linear(LIMIT);
}

#[test]
fn burns_norms() {
    configure();
    against_burn::norms(LIMIT);
}

#[test]
fn burns_embedding() {
    configure();
    against_burn::embedding(LIMIT);
}

#[test]
fn burns_cross_entropy() {
    configure();
    against_burn::cross_entropy(LIMIT);
}

#[test]
fn burns_attention() {
    configure();
    against_burn::attention(LIMIT);
}

#[test]
fn batch_norm_over_replicas() {
    configure();
    batch_norm::replicas_against_the_formula(LIMIT);
    batch_norm::few_rows_against_the_formula(LIMIT);
}

#[test]
fn batch_norm_of_one_rank() {
    configure();
    batch_norm::replicas_against_one(LIMIT);
}

#[test]
fn burns_batch_norm() {
    configure();
    batch_norm::burns(LIMIT);
}

#[test]
fn batch_norm_in_the_engine() {
    configure();
    replicas::engine(LIMIT);
}

#[test]
fn convolutions() {
    configure();
    conv::output_then_input(LIMIT);
}

#[test]
fn convolutions_gathered_and_sliced() {
    configure();
    conv::gathered_and_sliced(LIMIT);
}

#[test]
fn burns_convolution() {
    configure();
    conv::burns(LIMIT);
}
