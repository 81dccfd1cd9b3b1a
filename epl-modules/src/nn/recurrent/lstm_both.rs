//! A long short-term memory in both directions.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::{Initializer, LstmState};
use burn::tensor::Tensor;
use epl_core::Place;

use super::lstm::{Lstm, LstmConfig};
use super::steps::{both_ways, of_direction};
use crate::nn::activation::ActivationConfig;
use crate::placement::REPLICATED;

/// Configuration to create a [`BiLstm`] layer using the [init function](BiLstmConfig::init).
#[derive(Config, Debug)]
pub struct BiLstmConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the hidden state.
    pub d_hidden: usize,
    /// Whether biases are added.
    pub bias: bool,
    /// How the parameters get their first values. Default: Xavier's normal
    #[config(default = "Initializer::XavierNormal{gain:1.0}")]
    pub initializer: Initializer,
    /// Whether the batch is dim 0 and the sequence dim 1, or the other way round. Default: true
    #[config(default = true)]
    pub batch_first: bool,
    /// Bounds the cell state to `[-clip, clip]` after each step.
    pub clip: Option<f64>,
    /// Whether there is no forget gate, and its value is one minus the input gate's. Default: false
    #[config(default = false)]
    pub input_forget: bool,
    /// The function of input, forget and output gate. Default: sigmoid
    #[config(default = "ActivationConfig::Sigmoid")]
    pub gate_activation: ActivationConfig,
    /// The function of the cell gate. Default: tanh
    #[config(default = "ActivationConfig::Tanh")]
    pub cell_activation: ActivationConfig,
    /// The function of the cell state on its way to the hidden state. Default: tanh
    #[config(default = "ActivationConfig::Tanh")]
    pub hidden_activation: ActivationConfig,
}

/// Burn's `BiLstm`: two [`Lstm`]s, of which one runs sequences from their end.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::BiLstmConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let lstm = BiLstmConfig::new(4, 8, true).init(&epl.place().child("lstm"));
///     let x = Tensor::<3>::ones([2, 5, 4], epl.place().device());
///     let (output, last) = lstm.forward(x.clone(), None);
///     assert_eq!((output.dims(), last.cell.dims()), ([2, 5, 16], [2, 2, 8])); // dim 0 of a state: from the start, from the end
///     // As a state that is given: each direction begins with its own.
///     assert_eq!(lstm.forward(x, Some(last)).0.dims(), [2, 5, 16]);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`BiLstmConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct BiLstm {
    /// From the start.
    pub forward: Lstm,
    /// From the end.
    pub reverse: Lstm,
    /// The size of the hidden state of each.
    pub d_hidden: usize,
    /// Whether the batch is dim 0.
    pub batch_first: bool,
}

impl BiLstmConfig {
    /// Initializes a new [`BiLstm`] layer.
    ///
    /// # Errors
    ///
    /// As [`LstmConfig::init`].
    pub fn init(&self, place: &Place) -> BiLstm {
        let config = LstmConfig::new(self.d_input, self.d_hidden, self.bias)
            .with_initializer(self.initializer.clone())
            .with_clip(self.clip)
            .with_input_forget(self.input_forget)
            .with_gate_activation(self.gate_activation.clone())
            .with_cell_activation(self.cell_activation.clone())
            .with_hidden_activation(self.hidden_activation.clone());
        BiLstm {
            forward: config.init(&place.child("forward")),
            reverse: config.init(&place.child("reverse")),
            d_hidden: self.d_hidden,
            batch_first: self.batch_first,
        }
    }
}

impl BiLstm {
    /// Runs sequences in both directions: the hidden states of each step, and the last states. Without a state they begin at
    /// zero.
    ///
    /// # Shapes
    ///
    /// - batched_input: `[batch_size, seq_length, d_input]`; `[seq_length, batch_size, d_input]` without `batch_first`
    /// - state: `[2, batch_size, d_hidden]`, both
    /// - output: `[batch_size, seq_length, d_hidden * 2]`, or `[seq_length, batch_size, d_hidden * 2]`, and the states
    ///
    /// # Errors
    ///
    /// As [`Lstm::forward`].
    pub fn forward(&self, batched_input: Tensor<3>, state: Option<LstmState<3>>) -> (Tensor<3>, LstmState<3>) {
        let (output, states) = both_ways(batched_input, self.batch_first, |input, backwards| {
            let of = |state: &LstmState<3>| state.clone().map_state(|state| of_direction("BiLSTM", &state, backwards));
            let layer = if backwards { &self.reverse } else { &self.forward };
            layer.directed(input, state.as_ref().map(of), backwards)
        });
        (output, LstmState::stack(states.into(), 0))
    }
}

impl ModuleDisplay for BiLstm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_input", &self.forward.input_gate.d_input())
            .add("d_hidden", &self.d_hidden)
            .add("bias", &self.forward.input_gate.has_bias())
            .add("placement", REPLICATED)
            .optional()
    }
}
