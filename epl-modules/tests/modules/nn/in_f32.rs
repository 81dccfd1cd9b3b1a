//! The table in f32, each part in a process of its own, in which nobody else draws from Burn's generator: Burn's numbers to 1e-6 of
//! the largest element of each tensor. Of encoders and decoders, in which norms
//! stand behind each other, 4e-7 to 2e-6 were found, by the parameters that are drawn: a layer norm sums in lanes, in one pass,
//! where Burn's sums operation by operation, which is off by 2e-7 for one norm.

use super::table::{Limits, Table};
use super::{attention, convolutions, layers, recurrent};

const LIMITS: Limits = Limits { burn: 1e-6, deep: 1e-5, strategies: 1e-4, half: Some(16.0) };

#[test]
fn linear() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        layers::linear(&mut table);
        table.print();
    });
}

#[test]
fn embedding() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        layers::embedding(&mut table);
        table.print();
    });
}

#[test]
fn norms() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        layers::norms(&mut table);
        table.print();
    });
}

#[test]
fn activations() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        layers::activations(&mut table);
        table.print();
    });
}

#[test]
fn layers_that_draw() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        layers::drawing(&mut table);
        table.print();
    });
}

#[test]
fn convolutions() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        convolutions::plain(&mut table);
        table.print();
    });
}

#[test]
fn transposed_convolutions() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        convolutions::transposed(&mut table);
        table.print();
    });
}

#[test]
fn deformable_convolution() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        convolutions::deformable(&mut table);
        table.print();
    });
}

#[test]
fn multi_head_attention() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        attention::multi_head(&mut table);
        table.print();
    });
}

#[test]
fn transformers() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        attention::transformers(&mut table);
        table.print();
    });
}

#[test]
fn encodings_of_positions() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        attention::positions(&mut table);
        table.print();
    });
}

#[test]
fn lstm() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        recurrent::lstm(&mut table);
        recurrent::bi_lstm(&mut table);
        table.print();
    });
}

#[test]
fn gru() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        recurrent::gru(&mut table);
        table.print();
    });
}

#[test]
fn rnn() {
    epl_testing::alone(|| {
        let mut table = Table::new(LIMITS);
        recurrent::rnn(&mut table);
        table.print();
    });
}
