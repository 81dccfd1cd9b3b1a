//! No split of the tensor axis changes what a layer computes, in f64 to 1e-10; and it is what Burn's layer computes.

use crate::layers::{against_burn, batch_norm, cases, conv, fused, replicas};

const LIMIT: f64 = 1e-10;

#[test]
fn column_then_row() {
    epl_testing::in_f64(|| {
        cases::column_then_row(LIMIT);
    });
}

#[test]
fn columns_gathered() {
    epl_testing::in_f64(|| {
        cases::columns_gathered(LIMIT);
    });
}

#[test]
fn norms_and_replicated() {
    epl_testing::in_f64(|| {
        cases::norms_and_replicated(LIMIT);
    });
}

#[test]
fn embedding_with_tied_head() {
    epl_testing::in_f64(|| {
        cases::embedding_with_tied_head(LIMIT);
    });
}

#[test]
fn biased_tied_head() {
    epl_testing::in_f64(|| {
        cases::biased_tied_head(LIMIT);
    });
}

#[test]
fn cross_entropy() {
    epl_testing::in_f64(|| {
        cases::cross_entropy(LIMIT);
    });
}

#[test]
fn argmax() {
    epl_testing::in_f64(|| {
        cases::argmax(LIMIT);
    });
}

#[test]
fn self_attention() {
    epl_testing::in_f64(|| {
        cases::self_attention(LIMIT);
    });
}

#[test]
fn grouped_attention() {
    epl_testing::in_f64(|| {
        cases::grouped_attention(LIMIT);
    });
}

#[test]
fn cross_attention_with_bias() {
    epl_testing::in_f64(|| {
        cases::cross_attention_with_bias(LIMIT);
    });
}

#[test]
fn parallel_mlp() {
    epl_testing::in_f64(|| {
        cases::parallel_mlp(LIMIT);
    });
}

#[test]
fn burns_linear() {
    epl_testing::in_f64(|| {
        against_burn::linear(LIMIT);
    });
}

#[test]
fn burns_norms() {
    epl_testing::in_f64(|| {
        against_burn::norms(LIMIT);
    });
}

#[test]
fn burns_embedding() {
    epl_testing::in_f64(|| {
        against_burn::embedding(LIMIT);
    });
}

#[test]
fn burns_cross_entropy() {
    epl_testing::in_f64(|| {
        against_burn::cross_entropy(LIMIT);
    });
}

#[test]
fn burns_attention() {
    epl_testing::in_f64(|| {
        against_burn::attention(LIMIT);
    });
}

#[test]
fn batch_norm_over_replicas() {
    epl_testing::in_f64(|| {
        batch_norm::replicas_against_the_formula(LIMIT);
        batch_norm::few_rows_against_the_formula(LIMIT);
    });
}

#[test]
fn batch_norm_of_one_rank() {
    epl_testing::in_f64(|| {
        batch_norm::replicas_against_one(LIMIT);
    });
}

#[test]
fn burns_batch_norm() {
    epl_testing::in_f64(|| {
        batch_norm::burns(LIMIT);
    });
}

#[test]
fn batch_norm_in_the_engine() {
    epl_testing::in_f64(|| {
        replicas::engine(LIMIT);
    });
}

#[test]
fn convolutions() {
    epl_testing::in_f64(|| {
        conv::output_then_input(LIMIT);
    });
}

#[test]
fn convolutions_gathered_and_sliced() {
    epl_testing::in_f64(|| {
        conv::gathered_and_sliced(LIMIT);
    });
}

#[test]
fn burns_convolution() {
    epl_testing::in_f64(|| {
        conv::burns(LIMIT);
    });
}

#[test]
fn fused_linear() {
    epl_testing::in_f64(|| {
        fused::linear(LIMIT);
    });
}

#[test]
fn fused_embedding() {
    epl_testing::in_f64(|| {
        fused::embedding(LIMIT);
    });
}

#[test]
fn fused_convolutions() {
    epl_testing::in_f64(|| {
        fused::convolutions(LIMIT);
    });
}

#[test]
fn fused_convolutions_along_one_dim() {
    epl_testing::in_f64(|| {
        fused::convolutions_along_one_dim(LIMIT);
    });
}

#[test]
fn fused_layer_norm() {
    epl_testing::in_f64(|| {
        fused::layer_norm(LIMIT);
    });
}

#[test]
fn fused_rms_norm() {
    epl_testing::in_f64(|| {
        fused::rms_norm(LIMIT);
    });
}

#[test]
fn fused_batch_norm() {
    epl_testing::in_f64(|| {
        fused::batch_norm(LIMIT);
    });
}

#[test]
fn fused_activations() {
    epl_testing::in_f64(|| {
        fused::activations(LIMIT);
    });
}

#[test]
fn fused_gates() {
    epl_testing::in_f64(|| {
        fused::gated(LIMIT);
    });
}

#[test]
fn fused_cross_entropy() {
    epl_testing::in_f64(|| {
        fused::cross_entropy(LIMIT);
    });
}
