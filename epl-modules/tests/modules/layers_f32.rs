//! No split of the tensor axis changes what a layer computes, in f32 to 1e-5; and it is what Burn's layer computes.

use crate::layers::{against_burn, batch_norm, cases, conv, fused, replicas, steps};

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
fn biased_tied_head() {
    cases::biased_tied_head(LIMIT);
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
fn grouped_attention() {
    cases::grouped_attention(LIMIT);
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

#[test]
fn batch_norm_over_replicas() {
    batch_norm::replicas_against_the_formula(LIMIT);
}

#[test]
fn batch_norm_of_one_rank() {
    batch_norm::replicas_against_one(LIMIT);
}

#[test]
fn burns_batch_norm() {
    batch_norm::burns(LIMIT);
}

#[test]
fn batch_norm_in_the_engine() {
    replicas::engine(LIMIT);
}

#[test]
fn convolutions() {
    conv::output_then_input(LIMIT);
}

#[test]
fn convolutions_gathered_and_sliced() {
    conv::gathered_and_sliced(LIMIT);
}

#[test]
fn burns_convolution() {
    conv::burns(LIMIT);
}

#[test]
fn batch_norm_of_a_large_mean() {
    batch_norm::a_large_mean();
}

#[test]
fn running_statistics() {
    replicas::running_statistics();
}

#[test]
fn running_statistics_outlive_an_overflow() {
    replicas::an_overflow();
}

#[test]
fn running_statistics_outlive_a_batch_that_fails() {
    replicas::a_batch_that_fails();
}

#[test]
fn fused_linear() {
    fused::linear(LIMIT);
}

#[test]
fn fused_embedding() {
    fused::embedding(LIMIT);
}

#[test]
fn fused_convolutions() {
    fused::convolutions(LIMIT);
}

#[test]
fn fused_convolutions_along_one_dim() {
    fused::convolutions_along_one_dim(LIMIT);
}

#[test]
fn fused_layer_norm() {
    fused::layer_norm(LIMIT);
}

#[test]
fn fused_rms_norm() {
    fused::rms_norm(LIMIT);
}

#[test]
fn fused_batch_norm() {
    fused::batch_norm(LIMIT);
}

#[test]
fn fused_activations() {
    fused::activations(LIMIT);
}

#[test]
fn fused_gates() {
    fused::gated(LIMIT);
}

#[test]
fn fused_cross_entropy() {
    fused::cross_entropy(LIMIT);
}

#[test]
fn a_step_of_a_transformer_has_the_same_bits_on_any_number_of_threads() {
    steps::of_a_transformer();
}

#[test]
fn a_step_of_a_convolutional_network_has_the_same_bits_on_any_number_of_threads() {
    steps::of_a_convolutional_network();
}
