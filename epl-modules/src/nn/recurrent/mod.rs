//! Recurrent layers, whole on every rank of the tensor axis.
//!
//! In mixed precision they take and give 16 bits, and so are their parameters. A product of a gate is of 16 bits, as a
//! [`Linear`](super::Linear)'s is, where no gate of the layer stays in f32. In f32 are the sums of the two products, activations (but those with parameters, which have
//! the type of these), what is done with gates, and the state that goes from step to step: the cell of an [`Lstm`], the hidden
//! state of a [`Gru`] and an [`Rnn`]. It is rounded where it enters a product or leaves the layer.

mod cell;
mod gate;
mod gru;
mod lstm;
mod lstm_both;
mod rnn;
mod steps;

// As they are: tensors, and how states are made of these.
pub use burn::nn::{LstmState, OptionalInitialLstmState, RnnState};

pub use gate::GateController;
pub use gru::{BiGru, BiGruConfig, Gru, GruConfig};
pub use lstm::{Lstm, LstmConfig};
pub use lstm_both::{BiLstm, BiLstmConfig};
pub use rnn::{BiRnn, BiRnnConfig, Rnn, RnnConfig};
