//! The plain recurrent layer, and one in both directions.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::{Initializer, RnnState};
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::wide;

use super::gate::{GateController, Joined, activated};
use super::steps::{batch_first, both_ways, clipped, of_direction, run, start, steps};
use crate::invalid::check_last_dim;
use crate::nn::activation::{Activation, ActivationConfig};
use crate::of_epl::OfEpl;
use crate::placement::REPLICATED;

/// Configuration to create an [`Rnn`] layer using the [init function](RnnConfig::init).
#[derive(Config, Debug)]
pub struct RnnConfig {
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
    /// Whether a sequence is run from its end. Default: false
    #[config(default = false)]
    pub reverse: bool,
    /// Bounds the hidden state to `[-clip, clip]` after each step.
    pub clip: Option<f64>,
    /// The function of the hidden state. Default: tanh
    #[config(default = "ActivationConfig::Tanh")]
    pub hidden_activation: ActivationConfig,
}

/// Burn's `Rnn`, whole on every rank. See [`recurrent`](super) for what is computed in f32.
///
/// `h = f(x Wx + bx + h Wh + bh)`. Should be created with [`RnnConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::RnnConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let rnn = RnnConfig::new(4, 8, true).with_clip(Some(0.1)).init(&epl.place().child("rnn"));
///     let (output, state) = rnn.forward(Tensor::ones([2, 5, 4], epl.place().device()), None);
///     assert_eq!((output.dims(), state.hidden.dims()), ([2, 5, 8], [2, 8]));
///     assert_eq!(output.abs().max().into_scalar::<f32>(), 0.1); // what tanh gives is cut there
///     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Rnn {
    /// What the hidden state is made of.
    pub gate: GateController,
    /// The size of the hidden state.
    pub d_hidden: usize,
    /// Whether the batch is dim 0.
    pub batch_first: bool,
    /// Whether a sequence is run from its end.
    pub reverse: bool,
    /// The bound of the hidden state.
    pub clip: Option<f64>,
    /// The function of the hidden state.
    pub hidden_activation: Activation,
    of_epl: OfEpl,
}

/// Configuration to create a [`BiRnn`] layer using the [init function](BiRnnConfig::init).
#[derive(Config, Debug)]
pub struct BiRnnConfig {
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
    /// Bounds the hidden state to `[-clip, clip]` after each step.
    pub clip: Option<f64>,
    /// The function of the hidden state. Default: tanh
    #[config(default = "ActivationConfig::Tanh")]
    pub hidden_activation: ActivationConfig,
}

/// Burn's `BiRnn`: two [`Rnn`]s, of which one runs sequences from their end.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::BiRnnConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let config = BiRnnConfig::new(4, 8, true).with_batch_first(false);
///     let rnn = config.init(&epl.place().child("rnn"));
///     let (output, state) = rnn.forward(Tensor::ones([5, 2, 4], epl.place().device()), None); // five steps of two sequences
///     assert_eq!((output.dims(), state.hidden.dims()), ([5, 2, 16], [2, 2, 8]));
///     Ok(())
/// });
/// ```
///
/// Should be created with [`BiRnnConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct BiRnn {
    /// From the start.
    pub forward: Rnn,
    /// From the end.
    pub reverse: Rnn,
    /// The size of the hidden state of each.
    pub d_hidden: usize,
    /// Whether the batch is dim 0.
    pub batch_first: bool,
}

impl RnnConfig {
    /// Initializes a new [`Rnn`] layer.
    ///
    /// # Errors
    ///
    /// As the activation's configuration.
    pub fn init(&self, place: &Place) -> Rnn {
        let initializer = self.initializer.clone();
        Rnn {
            gate: GateController::new(self.d_input, self.d_hidden, self.bias, initializer, &place.child("gate")),
            d_hidden: self.d_hidden,
            batch_first: self.batch_first,
            reverse: self.reverse,
            clip: self.clip,
            hidden_activation: self.hidden_activation.init(&place.child("hidden_activation")),
            of_epl: OfEpl,
        }
    }
}

impl Rnn {
    /// Runs sequences: the hidden state of each step, and the last one. Without a state they begin at zero.
    ///
    /// # Shapes
    ///
    /// - batched_input: `[batch_size, seq_length, d_input]`; `[seq_length, batch_size, d_input]` without `batch_first`
    /// - state: `[batch_size, d_hidden]`
    /// - output: `[batch_size, seq_length, d_hidden]`, or `[seq_length, batch_size, d_hidden]`, and the state
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a size is another, or there is no step.
    pub fn forward(&self, batched_input: Tensor<3>, state: Option<RnnState<2>>) -> (Tensor<3>, RnnState<2>) {
        let input = batch_first(batched_input, self.batch_first);
        let (output, hidden) = self.directed(input, state.map(|state| state.hidden), self.reverse);
        (batch_first(output, self.batch_first), RnnState::new(hidden))
    }

    /// Of a batch that is dim 0, from the start or the end of sequences.
    fn directed(&self, input: Tensor<3>, state: Option<Tensor<2>>, backwards: bool) -> (Tensor<3>, Tensor<2>) {
        let (dims, device, dtype) = (input.dims(), input.device(), self.gate.dtype());
        check_last_dim("RNN", ("d_input", self.gate.d_input()), dims);
        let start = start("RNN", state, [dims[0], self.d_hidden], (&device, wide(dtype)));
        let (of_input, of_hidden) = (Joined::of_inputs(&[&self.gate]), Joined::of_hidden(&[&self.gate]));
        let step = |input: Tensor<2>, hidden: Tensor<2>| {
            let sum = of_input.forward(input) + of_hidden.forward(hidden);
            let hidden = clipped(activated(&self.hidden_activation, sum), self.clip);
            (hidden.clone().cast(dtype), hidden)
        };
        let (output, hidden) = run("RNN", steps(input, backwards), dims[1], start, step);
        (output, hidden.cast(dtype))
    }
}

impl BiRnnConfig {
    /// Initializes a new [`BiRnn`] layer.
    ///
    /// # Errors
    ///
    /// As [`RnnConfig::init`].
    pub fn init(&self, place: &Place) -> BiRnn {
        let config = RnnConfig::new(self.d_input, self.d_hidden, self.bias)
            .with_initializer(self.initializer.clone())
            .with_clip(self.clip)
            .with_hidden_activation(self.hidden_activation.clone());
        BiRnn {
            forward: config.init(&place.child("forward")),
            reverse: config.init(&place.child("reverse")),
            d_hidden: self.d_hidden,
            batch_first: self.batch_first,
        }
    }
}

impl BiRnn {
    /// Runs sequences in both directions: the hidden states of each step, and the last ones. Without a state they begin at zero.
    ///
    /// # Shapes
    ///
    /// - batched_input: `[batch_size, seq_length, d_input]`; `[seq_length, batch_size, d_input]` without `batch_first`
    /// - state: `[2, batch_size, d_hidden]`
    /// - output: `[batch_size, seq_length, d_hidden * 2]`, or `[seq_length, batch_size, d_hidden * 2]`, and the state
    ///
    /// # Errors
    ///
    /// As [`Rnn::forward`].
    pub fn forward(&self, batched_input: Tensor<3>, state: Option<RnnState<3>>) -> (Tensor<3>, RnnState<3>) {
        let (output, states) = both_ways(batched_input, self.batch_first, |input, backwards| {
            let layer = if backwards { &self.reverse } else { &self.forward };
            let state = state.as_ref().map(|state| of_direction("BiRNN", &state.hidden, backwards));
            layer.directed(input, state, backwards)
        });
        (output, RnnState::new(Tensor::stack(states.into(), 0)))
    }
}

impl ModuleDisplay for Rnn {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_input", &self.gate.d_input())
            .add("d_hidden", &self.d_hidden)
            .add("bias", &self.gate.has_bias())
            .add("placement", REPLICATED)
            .optional()
    }
}

impl ModuleDisplay for BiRnn {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_input", &self.forward.gate.d_input())
            .add("d_hidden", &self.d_hidden)
            .add("bias", &self.forward.gate.has_bias())
            .add("placement", REPLICATED)
            .optional()
    }
}
