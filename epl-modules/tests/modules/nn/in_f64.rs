//! The table in f64: Burn's numbers to 1e-12, and one rank's to 1e-10.

use super::table::{Limits, Table};
use super::{attention, convolutions, layers, recurrent};

const LIMITS: Limits = Limits { burn: 1e-12, deep: 1e-12, strategies: 1e-10, half: None };

#[test]
fn linear() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        layers::linear(&mut table);
        table.print();
    });
}

#[test]
fn embedding() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        layers::embedding(&mut table);
        table.print();
    });
}

#[test]
fn norms() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        layers::norms(&mut table);
        table.print();
    });
}

#[test]
fn activations() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        layers::activations(&mut table);
        table.print();
    });
}

#[test]
fn layers_that_draw() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        layers::drawing(&mut table);
        table.print();
    });
}

#[test]
fn convolutions() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        convolutions::plain(&mut table);
        table.print();
    });
}

#[test]
fn transposed_convolutions() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        convolutions::transposed(&mut table);
        table.print();
    });
}

#[test]
fn deformable_convolution() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        convolutions::deformable(&mut table);
        table.print();
    });
}

#[test]
fn multi_head_attention() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        attention::multi_head(&mut table);
        table.print();
    });
}

#[test]
fn transformers() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        attention::transformers(&mut table);
        table.print();
    });
}

#[test]
fn encodings_of_positions() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        attention::positions(&mut table);
        table.print();
    });
}

#[test]
fn lstm() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        recurrent::lstm(&mut table);
        recurrent::bi_lstm(&mut table);
        table.print();
    });
}

#[test]
fn gru() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        recurrent::gru(&mut table);
        table.print();
    });
}

#[test]
fn rnn() {
    epl_testing::in_f64(|| {
        let mut table = Table::new(LIMITS);
        recurrent::rnn(&mut table);
        table.print();
    });
}
