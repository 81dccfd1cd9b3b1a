//! Recurrent layers: outputs beside last states, with all options.

use burn::nn as burns;
use burn::nn::{LstmState, RnnState};
use burn::tensor::Tensor;
use epl_modules::nn;

use super::case::Layer;
use super::layers::line;
use super::table::{Line, Table};

const STEPS: usize = 3;
const INPUT: usize = 5;
const HIDDEN: usize = 4;

/// Those whose states have a limit, or whose functions have a corner.
const JUMPING: [&str; 7] = [
    "Lstm, reversed",
    "Lstm, functions",
    "BiLstm, coupled",
    "Gru, clipped",
    "BiGru, batch second",
    "Rnn, reversed",
    "BiRnn, batch second",
];

/// Ours and Burn's of one configuration, run in the same way.
macro_rules! both {
    ($table:expr, $name:literal, $layer:ident, |$layers:ident| $made:expr, |$module:ident, $x:ident| $run:expr) => {{
        let ours = Layer::<nn::$layer> {
            build: |place| {
                use epl_modules::nn as $layers;
                $made.init(place)
            },
            forward: |$module, $x| $run,
        };
        let theirs = Layer::<burns::$layer> {
            build: |place| {
                use burn::nn as $layers;
                $made.init(place)
            },
            forward: |$module, $x| $run,
        };
        $table.line(Line { jumps: JUMPING.contains(&$name), ..line($name, [STEPS, INPUT], ours) }, theirs, 0.0);
    }};
}

/// A state of the numbers of this step.
fn of_step(x: &Tensor<3>, step: usize) -> Tensor<2> {
    x.clone().narrow(1, step, 1).narrow(2, 0, HIDDEN).squeeze_dim(1)
}

/// One of each direction.
fn of_steps(x: &Tensor<3>, steps: [usize; 2]) -> Tensor<3> {
    Tensor::stack(steps.map(|step| of_step(x, step)).into(), 0)
}

/// Last states as further steps.
fn beside<const N: usize>(output: Tensor<3>, states: [Tensor<2>; N]) -> Tensor<3> {
    let states = states.into_iter().map(|state| state.unsqueeze_dim(1));
    Tensor::cat([output].into_iter().chain(states).collect(), 1)
}

/// Those of both directions.
fn beside_both<const N: usize>(output: Tensor<3>, states: [Tensor<3>; N]) -> Tensor<3> {
    let [rows, _, features] = output.dims();
    beside(output, states.map(|state| state.swap_dims(0, 1).reshape([rows, features])))
}

pub(crate) fn lstm(table: &mut Table) {
    both!(table, "Lstm", Lstm, |layers| layers::LstmConfig::new(INPUT, HIDDEN, true), |layer, x| {
        let (output, state) = layer.forward(x, None);
        beside(output, [state.cell, state.hidden])
    });
    both!(table, "Lstm, from states", Lstm, |layers| layers::LstmConfig::new(INPUT, HIDDEN, true), |layer, x| {
        let state = LstmState::new(of_step(&x, 0) * 2.0, of_step(&x, 1));
        let (output, state) = layer.forward(x, Some(state));
        beside(output, [state.cell, state.hidden])
    });
    both!(
        table,
        "Lstm, reversed",
        Lstm,
        |layers| layers::LstmConfig::new(INPUT, HIDDEN, false).with_reverse(true).with_clip(Some(0.1)),
        |layer, x| {
            let (output, state) = layer.forward(x * 3.0, None);
            beside(output, [state.cell, state.hidden])
        }
    );
    both!(
        table,
        "Lstm, coupled",
        Lstm,
        |layers| layers::LstmConfig::new(INPUT, HIDDEN, true).with_batch_first(false).with_input_forget(true),
        |layer, x| {
            let (output, state) = layer.forward(x.swap_dims(0, 1), None);
            beside(output.swap_dims(0, 1), [state.cell, state.hidden])
        }
    );
    both!(
        table,
        "Lstm, functions",
        Lstm,
        |layers| {
            use layers::activation::ActivationConfig;
            layers::LstmConfig::new(INPUT, HIDDEN, true)
                .with_gate_activation(ActivationConfig::Softsign)
                .with_cell_activation(layers::LeakyReluConfig::new().into())
                .with_hidden_activation(layers::PReluConfig::new().into())
        },
        |layer, x| layer.forward(x, None).0
    );
    both!(table, "Lstm, by steps", Lstm, |layers| layers::LstmConfig::new(INPUT, HIDDEN, true), |layer, x| {
        let ([rows, steps, _], device) = (x.dims(), x.device());
        layer.forward_iter(x.iter_dim(1).enumerate().rev(), None, rows, steps, &device).0
    });
}

pub(crate) fn bi_lstm(table: &mut Table) {
    both!(table, "BiLstm", BiLstm, |layers| layers::BiLstmConfig::new(INPUT, HIDDEN, true), |layer, x| {
        let state = LstmState::new(of_steps(&x, [0, 1]), of_steps(&x, [1, 2]));
        let (output, state) = layer.forward(x, Some(state));
        beside_both(output, [state.cell, state.hidden])
    });
    both!(
        table,
        "BiLstm, coupled",
        BiLstm,
        |layers| {
            layers::BiLstmConfig::new(INPUT, HIDDEN, false)
                .with_batch_first(false)
                .with_input_forget(true)
                .with_clip(Some(0.2))
                .with_gate_activation(layers::activation::ActivationConfig::Softsign)
        },
        |layer, x| layer.forward(x.swap_dims(0, 1), None).0.swap_dims(0, 1)
    );
}

pub(crate) fn gru(table: &mut Table) {
    both!(table, "Gru", Gru, |layers| layers::GruConfig::new(INPUT, HIDDEN, true), |layer, x| layer.forward(x, None));
    both!(
        table,
        "Gru, from a state",
        Gru,
        |layers| layers::GruConfig::new(INPUT, HIDDEN, false).with_reset_after(false),
        |layer, x| {
            let state = of_step(&x, 0);
            layer.forward(x, Some(state))
        }
    );
    both!(
        table,
        "Gru, clipped",
        Gru,
        |layers| {
            layers::GruConfig::new(INPUT, HIDDEN, true)
                .with_clip(Some(0.1))
                .with_gate_activation(layers::activation::ActivationConfig::Softsign)
                .with_hidden_activation(layers::PReluConfig::new().into())
        },
        |layer, x| layer.forward(x * 3.0, None)
    );
    both!(table, "BiGru", BiGru, |layers| layers::BiGruConfig::new(INPUT, HIDDEN, true), |layer, x| {
        let state = of_steps(&x, [0, 1]);
        let (output, state) = layer.forward(x, Some(state));
        beside_both(output, [state])
    });
    both!(
        table,
        "BiGru, batch second",
        BiGru,
        |layers| {
            layers::BiGruConfig::new(INPUT, HIDDEN, false)
                .with_batch_first(false)
                .with_reset_after(false)
                .with_clip(Some(0.2))
        },
        |layer, x| layer.forward(x.swap_dims(0, 1), None).0.swap_dims(0, 1)
    );
}

pub(crate) fn rnn(table: &mut Table) {
    both!(table, "Rnn", Rnn, |layers| layers::RnnConfig::new(INPUT, HIDDEN, true), |layer, x| {
        let state = RnnState::new(of_step(&x, 0));
        let (output, state) = layer.forward(x, Some(state));
        beside(output, [state.hidden])
    });
    both!(
        table,
        "Rnn, reversed",
        Rnn,
        |layers| {
            layers::RnnConfig::new(INPUT, HIDDEN, false)
                .with_batch_first(false)
                .with_reverse(true)
                .with_clip(Some(0.3))
                .with_hidden_activation(layers::activation::ActivationConfig::Softsign)
        },
        |layer, x| {
            let (output, state) = layer.forward(x.swap_dims(0, 1), None);
            beside(output.swap_dims(0, 1), [state.hidden])
        }
    );
    both!(table, "BiRnn", BiRnn, |layers| layers::BiRnnConfig::new(INPUT, HIDDEN, true), |layer, x| {
        let state = RnnState::new(of_steps(&x, [0, 1]));
        let (output, state) = layer.forward(x, Some(state));
        beside_both(output, [state.hidden])
    });
    both!(
        table,
        "BiRnn, batch second",
        BiRnn,
        |layers| layers::BiRnnConfig::new(INPUT, HIDDEN, false).with_batch_first(false).with_clip(Some(0.3)),
        |layer, x| layer.forward(x.swap_dims(0, 1), None).0.swap_dims(0, 1)
    );
}
