//! The gated recurrent unit, and one in both directions.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::Place;
use epl_core::model::precision::{wide, widen};

use super::gate::{GateController, Joined, activated, parts};
use super::steps::{both_ways, clipped, of_direction, run, start, steps};
use crate::invalid::check_last_dim;
use crate::nn::activation::{Activation, ActivationConfig};
use crate::of_epl::OfEpl;
use crate::placement::REPLICATED;

/// Configuration to create a [`Gru`] layer using the [init function](GruConfig::init).
#[derive(Config, Debug)]
pub struct GruConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the hidden state.
    pub d_hidden: usize,
    /// Whether biases are added.
    pub bias: bool,
    /// Whether the reset gate multiplies the hidden state's product, as PyTorch's does, or the hidden state. Default: true
    #[config(default = true)]
    pub reset_after: bool,
    /// How the parameters get their first values. Default: Xavier's normal
    #[config(default = "Initializer::XavierNormal{gain:1.0}")]
    pub initializer: Initializer,
    /// The function of update and reset gate. Default: sigmoid
    #[config(default = "ActivationConfig::Sigmoid")]
    pub gate_activation: ActivationConfig,
    /// The function of the new gate. Default: tanh
    #[config(default = "ActivationConfig::Tanh")]
    pub hidden_activation: ActivationConfig,
    /// Bounds the hidden state to `[-clip, clip]` after each step.
    pub clip: Option<f64>,
}

/// Burn's `Gru`, whole on every rank. See [`recurrent`](super) for what is computed in f32.
///
/// See [Learning Phrase Representations using RNN Encoder-Decoder](https://arxiv.org/abs/1406.1078). Should be created with
/// [`GruConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::GruConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let gru = GruConfig::new(4, 8, true).init(&epl.place().child("gru"));
///     let x = Tensor::<3>::ones([2, 5, 4], epl.place().device());
///     let whole = gru.forward(x.clone(), None);
///     assert_eq!(whole.dims(), [2, 5, 8]);
///     // In two parts: the last hidden state of the first is where the second begins.
///     let first = gru.forward(x.clone().narrow(1, 0, 3), None);
///     let second = gru.forward(x.narrow(1, 3, 2), Some(first.narrow(1, 2, 1).squeeze_dim(1)));
///     assert!(testing::relative_error(&second.into_data(), &whole.narrow(1, 3, 2).into_data()) < 1e-5);
/// #     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Gru {
    /// How much of the hidden state stays.
    pub update_gate: GateController,
    /// How much of the hidden state the candidate is made of.
    pub reset_gate: GateController,
    /// The candidate for the hidden state.
    pub new_gate: GateController,
    /// The size of the hidden state.
    pub d_hidden: usize,
    /// Whether the reset gate multiplies the hidden state's product.
    pub reset_after: bool,
    /// The function of update and reset gate.
    pub gate_activation: Activation,
    /// The function of the new gate.
    pub hidden_activation: Activation,
    /// The bound of the hidden state.
    pub clip: Option<f64>,
    of_epl: OfEpl,
}

/// Configuration to create a [`BiGru`] layer using the [init function](BiGruConfig::init).
#[derive(Config, Debug)]
pub struct BiGruConfig {
    /// The size of the input features.
    pub d_input: usize,
    /// The size of the hidden state.
    pub d_hidden: usize,
    /// Whether biases are added.
    pub bias: bool,
    /// Whether the reset gate multiplies the hidden state's product, as PyTorch's does, or the hidden state. Default: true
    #[config(default = true)]
    pub reset_after: bool,
    /// How the parameters get their first values. Default: Xavier's normal
    #[config(default = "Initializer::XavierNormal{gain:1.0}")]
    pub initializer: Initializer,
    /// Whether the batch is dim 0 and the sequence dim 1, or the other way round. Default: true
    #[config(default = true)]
    pub batch_first: bool,
    /// The function of update and reset gate. Default: sigmoid
    #[config(default = "ActivationConfig::Sigmoid")]
    pub gate_activation: ActivationConfig,
    /// The function of the new gate. Default: tanh
    #[config(default = "ActivationConfig::Tanh")]
    pub hidden_activation: ActivationConfig,
    /// Bounds the hidden state to `[-clip, clip]` after each step.
    pub clip: Option<f64>,
}

/// Burn's `BiGru`: two [`Gru`]s, of which one runs sequences from their end.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::BiGruConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let gru = BiGruConfig::new(4, 8, true).init(&epl.place().child("gru"));
///     let (output, last) = gru.forward(Tensor::ones([2, 5, 4], epl.place().device()), None);
///     assert_eq!((output.dims(), last.dims()), ([2, 5, 16], [2, 2, 8]));
///     // The one that runs from the end is last at step 0, and has the second half of the features.
///     let reverse = output.narrow(1, 0, 1).narrow(2, 8, 8).squeeze_dim::<2>(1);
///     assert_eq!(reverse.into_data(), last.narrow(0, 1, 1).squeeze_dim::<2>(0).into_data());
///     Ok(())
/// });
/// ```
///
/// Should be created with [`BiGruConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct BiGru {
    /// From the start.
    pub forward: Gru,
    /// From the end.
    pub reverse: Gru,
    /// The size of the hidden state of each.
    pub d_hidden: usize,
    /// Whether the batch is dim 0.
    pub batch_first: bool,
}

impl GruConfig {
    /// Initializes a new [`Gru`] layer.
    ///
    /// # Errors
    ///
    /// As the activations' configurations.
    pub fn init(&self, place: &Place) -> Gru {
        let gate = |name: &str| {
            GateController::new(self.d_input, self.d_hidden, self.bias, self.initializer.clone(), &place.child(name))
        };
        Gru {
            update_gate: gate("update_gate"),
            reset_gate: gate("reset_gate"),
            new_gate: gate("new_gate"),
            d_hidden: self.d_hidden,
            reset_after: self.reset_after,
            gate_activation: self.gate_activation.init(&place.child("gate_activation")),
            hidden_activation: self.hidden_activation.init(&place.child("hidden_activation")),
            clip: self.clip,
            of_epl: OfEpl,
        }
    }
}

impl Gru {
    /// Runs sequences: the hidden state of each step. Without a state they begin at zero.
    ///
    /// # Shapes
    ///
    /// - batched_input: `[batch_size, seq_length, d_input]`
    /// - state: `[batch_size, d_hidden]`
    /// - output: `[batch_size, seq_length, d_hidden]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a size is another, or there is no step.
    pub fn forward(&self, batched_input: Tensor<3>, state: Option<Tensor<2>>) -> Tensor<3> {
        self.directed(batched_input, state, false).0
    }

    /// From the start or the end of sequences; gives the last hidden state too.
    fn directed(&self, input: Tensor<3>, state: Option<Tensor<2>>, backwards: bool) -> (Tensor<3>, Tensor<2>) {
        let (dims, device, dtype) = (input.dims(), input.device(), self.update_gate.dtype());
        check_last_dim("GRU", ("d_input", self.update_gate.d_input()), dims);
        let start = start("GRU", state, [dims[0], self.d_hidden], (&device, wide(dtype)));
        let gates = [&self.update_gate, &self.reset_gate, &self.new_gate];
        let of_input = Joined::of_inputs(&gates);
        let of_hidden = Joined::of_hidden(if self.reset_after { &gates } else { &gates[..2] });
        let step = |input: Tensor<2>, hidden: Tensor<2>| {
            let narrow = hidden.clone().cast(dtype);
            let hidden = self.step(of_input.forward(input.cast(dtype)), of_hidden.forward(narrow), hidden);
            (hidden.clone().cast(dtype), hidden)
        };
        let (output, hidden) = run("GRU", steps(input, backwards), dims[1], start, step);
        (output, hidden.cast(dtype))
    }

    /// The hidden state in f32 at least, of the products of the input with all gates, and of the hidden state with update and
    /// reset gate, and with the new gate where that is reset after it.
    fn step(&self, of_input: Tensor<2>, of_hidden: Tensor<2>, hidden: Tensor<2>) -> Tensor<2> {
        let gate = |product| activated(&self.gate_activation, product);
        let [update, reset, new] = parts(of_input);
        let (stays, candidate) = match self.reset_after {
            true => {
                let [of_update, of_reset, of_new] = parts(of_hidden);
                (gate(update + of_update), new + gate(reset + of_reset).mul(of_new))
            }
            false => {
                let [of_update, of_reset] = parts(of_hidden);
                let reset = hidden.clone().mul(gate(reset + of_reset));
                (gate(update + of_update), new + widen(self.new_gate.hidden_transform.forward(reset)))
            }
        };
        let enters = stays.clone().neg().add_scalar(1.0);
        let candidate = activated(&self.hidden_activation, candidate);
        clipped(candidate.mul(enters) + stays.mul(hidden), self.clip)
    }
}

impl BiGruConfig {
    /// Initializes a new [`BiGru`] layer.
    ///
    /// # Errors
    ///
    /// As [`GruConfig::init`].
    pub fn init(&self, place: &Place) -> BiGru {
        let config = GruConfig::new(self.d_input, self.d_hidden, self.bias)
            .with_reset_after(self.reset_after)
            .with_initializer(self.initializer.clone())
            .with_gate_activation(self.gate_activation.clone())
            .with_hidden_activation(self.hidden_activation.clone())
            .with_clip(self.clip);
        BiGru {
            forward: config.init(&place.child("forward")),
            reverse: config.init(&place.child("reverse")),
            d_hidden: self.d_hidden,
            batch_first: self.batch_first,
        }
    }
}

impl BiGru {
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
    /// As [`Gru::forward`].
    pub fn forward(&self, batched_input: Tensor<3>, state: Option<Tensor<3>>) -> (Tensor<3>, Tensor<3>) {
        let (output, states) = both_ways(batched_input, self.batch_first, |input, backwards| {
            let layer = if backwards { &self.reverse } else { &self.forward };
            layer.directed(input, state.as_ref().map(|state| of_direction("BiGRU", state, backwards)), backwards)
        });
        (output, Tensor::stack(states.into(), 0))
    }
}

impl ModuleDisplay for Gru {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_input", &self.update_gate.d_input())
            .add("d_hidden", &self.d_hidden)
            .add("bias", &self.update_gate.has_bias())
            .add("reset_after", &self.reset_after)
            .add("placement", REPLICATED)
            .optional()
    }
}

impl ModuleDisplay for BiGru {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_input", &self.forward.update_gate.d_input())
            .add("d_hidden", &self.d_hidden)
            .add("bias", &self.forward.update_gate.has_bias())
            .add("placement", REPLICATED)
            .optional()
    }
}
