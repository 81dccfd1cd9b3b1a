//! `epl_modules::nn`: every layer against Burn's own, and under every strategy against one rank.

/// The parts of the table, a test each, in a process of its own of this kind.
macro_rules! parts {
    ($process:ident, $limits:expr) => {
        parts! {
            @each $process, $limits;
            linear: layers::linear;
            embedding: layers::embedding;
            norms: layers::norms;
            activations: layers::activations;
            layers_that_draw: layers::drawing;
            convolutions: convolutions::plain;
            transposed_convolutions: convolutions::transposed;
            deformable_convolution: convolutions::deformable;
            multi_head_attention: attention::multi_head;
            transformers: attention::transformers;
            encodings_of_positions: attention::positions;
            lstm: recurrent::lstm, recurrent::bi_lstm;
            gru: recurrent::gru;
            rnn: recurrent::rnn;
        }
    };
    (@each $process:ident, $limits:expr; $($name:ident: $($part:path),+;)+) => {$(
        #[test]
        fn $name() {
            epl_testing::$process(|| {
                let mut table = Table::new($limits);
                $($part(&mut table);)+
                table.print();
            });
        }
    )+};
}

pub(crate) mod attention;
pub(crate) mod case;
pub(crate) mod convolutions;
pub(crate) mod layers;
pub(crate) mod recurrent;
pub(crate) mod strategy;
pub(crate) mod table;

mod biases;
mod half;
mod in_f32;
mod in_f64;
mod losses;
mod refusals;
