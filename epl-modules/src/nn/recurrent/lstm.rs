//! The long short-term memory.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::{Initializer, LstmState};
use burn::tensor::{Device, Tensor};
use epl_core::Place;
use epl_core::model::precision::wide;

use super::cell::lstm_cell;
use super::gate::{GateController, Joined, activated, parts};
use super::steps::{batch_first, clipped, run, start, steps};
use crate::invalid::{check_last_dim, refuse};
use crate::nn::activation::{Activation, ActivationConfig};
use crate::of_epl::OfEpl;
use crate::placement::REPLICATED;

/// Configuration to create an [`Lstm`] layer using the [init function](LstmConfig::init).
#[derive(Config, Debug)]
pub struct LstmConfig {
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

/// Burn's `Lstm`, whole on every rank. See [`recurrent`](super) for what is computed in f32.
///
/// See [Long Short-Term Memory](https://www.researchgate.net/publication/13853244). Should be created with [`LstmConfig`].
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::nn::LstmConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let lstm = LstmConfig::new(4, 8, true).init(&epl.place().child("lstm"));
///     let x = Tensor::<3>::ones([2, 5, 4], epl.place().device());
///     let (output, last) = lstm.forward(x.clone(), None);
///     assert_eq!((output.dims(), last.cell.dims(), last.hidden.dims()), ([2, 5, 8], [2, 8], [2, 8]));
///     // In two parts: the second begins with the states of the first.
///     let (_, state) = lstm.forward(x.clone().narrow(1, 0, 3), None);
///     let (_, state) = lstm.forward(x.narrow(1, 3, 2), Some(state));
///     assert!(testing::relative_error(&state.cell.into_data(), &last.cell.into_data()) < 1e-5);
/// #     Ok(())
/// });
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Lstm {
    /// How much of the candidate enters the cell state.
    pub input_gate: GateController,
    /// How much of the cell state stays; none where `input_forget` is.
    pub forget_gate: Option<GateController>,
    /// How much of the cell state leaves it.
    pub output_gate: GateController,
    /// The candidate for the cell state.
    pub cell_gate: GateController,
    /// The size of the hidden state.
    pub d_hidden: usize,
    /// Whether the batch is dim 0.
    pub batch_first: bool,
    /// Whether a sequence is run from its end.
    pub reverse: bool,
    /// The bound of the cell state.
    pub clip: Option<f64>,
    /// Whether the forget gate's value is one minus the input gate's.
    pub input_forget: bool,
    /// The function of input, forget and output gate.
    pub gate_activation: Activation,
    /// The function of the cell gate.
    pub cell_activation: Activation,
    /// The function of the cell state on its way to the hidden state.
    pub hidden_activation: Activation,
    of_epl: OfEpl,
}

impl LstmConfig {
    /// Initializes a new [`Lstm`] layer.
    ///
    /// # Errors
    ///
    /// As the activations' configurations.
    pub fn init(&self, place: &Place) -> Lstm {
        let gate = |name: &str| {
            GateController::new(self.d_input, self.d_hidden, self.bias, self.initializer.clone(), &place.child(name))
        };
        Lstm {
            input_gate: gate("input_gate"),
            forget_gate: (!self.input_forget).then(|| gate("forget_gate")),
            output_gate: gate("output_gate"),
            cell_gate: gate("cell_gate"),
            d_hidden: self.d_hidden,
            batch_first: self.batch_first,
            reverse: self.reverse,
            clip: self.clip,
            input_forget: self.input_forget,
            gate_activation: self.gate_activation.init(&place.child("gate_activation")),
            cell_activation: self.cell_activation.init(&place.child("cell_activation")),
            hidden_activation: self.hidden_activation.init(&place.child("hidden_activation")),
            of_epl: OfEpl,
        }
    }
}

impl Lstm {
    /// Runs sequences: the hidden state of each step, and the last states. Without a state they begin at zero.
    ///
    /// # Shapes
    ///
    /// - batched_input: `[batch_size, seq_length, d_input]`; `[seq_length, batch_size, d_input]` without `batch_first`
    /// - state: `[batch_size, d_hidden]`, both
    /// - output: `[batch_size, seq_length, d_hidden]`, or `[seq_length, batch_size, d_hidden]`, and the states
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a size is another, or there is no step.
    pub fn forward(&self, batched_input: Tensor<3>, state: Option<LstmState<2>>) -> (Tensor<3>, LstmState<2>) {
        let input = batch_first(batched_input, self.batch_first);
        let (output, state) = self.directed(input, state, self.reverse);
        (batch_first(output, self.batch_first), state)
    }

    /// [`forward`](Self::forward) of steps that come with their numbers, each `[batch_size, 1, d_input]`, in the order in which
    /// they are run.
    ///
    /// ```
    /// # use burn::tensor::Tensor;
    /// # use epl_core::testing;
    /// # use epl_modules::nn::LstmConfig;
    /// # testing::run((1, 1, 1), |epl| {
    /// #     let device = epl.place().device();
    /// let lstm = LstmConfig::new(4, 8, true).init(&epl.place().child("lstm"));
    /// let x = Tensor::<3>::ones([2, 5, 4], device);
    /// // The last step is run first; its output lies at its number all the same.
    /// let mut steps: Vec<_> = x.clone().iter_dim(1).enumerate().collect();
    /// steps.reverse();
    /// let (output, last) = lstm.forward_iter(steps.into_iter(), None, 2, 5, device);
    /// assert_eq!(output.dims(), [2, 5, 8]);
    /// assert_eq!(output.narrow(1, 0, 1).squeeze_dim::<2>(1).into_data(), last.hidden.into_data());
    /// #     Ok(())
    /// # });
    /// ```
    ///
    /// # Shapes
    ///
    /// - state: `[batch_size, d_hidden]`, both
    /// - output: `[batch_size, seq_length, d_hidden]` by the numbers, and the states
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a size is another, or a step is left out.
    pub fn forward_iter<I: Iterator<Item = (usize, Tensor<3>)>>(
        &self,
        input_timestep_iter: I,
        state: Option<LstmState<2>>,
        batch_size: usize,
        seq_length: usize,
        device: &Device,
    ) -> (Tensor<3>, LstmState<2>) {
        let (dtype, sizes) = (self.input_gate.dtype(), [batch_size, self.d_hidden]);
        let (cell, hidden) = state.map(LstmState::unpack).unzip();
        let cell = start("LSTM", cell, sizes, (device, wide(dtype)));
        let hidden = start("LSTM", hidden, sizes, (device, dtype));
        let gates = self.gates();
        let (of_input, of_hidden) = (Joined::of_inputs(&gates), Joined::of_hidden(&gates));
        let step = |input: Tensor<2>, state: LstmState<2>| {
            let (cell, hidden) = state.unpack();
            let state = self.step(of_input.forward(input.cast(dtype)) + of_hidden.forward(hidden), cell);
            (state.hidden.clone(), state)
        };
        let (output, state) = run("LSTM", input_timestep_iter, seq_length, LstmState::new(cell, hidden), step);
        (output, state.map_state(|state| state.cast(dtype)))
    }

    /// [`forward`](Self::forward) of a batch that is dim 0, from the start or the end of sequences.
    pub(super) fn directed(
        &self,
        input: Tensor<3>,
        state: Option<LstmState<2>>,
        backwards: bool,
    ) -> (Tensor<3>, LstmState<2>) {
        let (dims, device) = (input.dims(), input.device());
        check_last_dim("LSTM", ("d_input", self.input_gate.d_input()), dims);
        self.forward_iter(steps(input, backwards).into_iter(), state, dims[0], dims[1], &device)
    }

    /// Those that an LSTM has at least, and the forget gate where it is one of its own.
    fn gates(&self) -> Vec<&GateController> {
        let mut gates = vec![&self.input_gate, &self.output_gate, &self.cell_gate];
        match &self.forget_gate {
            _ if self.input_forget => {}
            Some(gate) => gates.push(gate),
            None => refuse(
                "Lstm: `input_forget` is off, and there is no `forget_gate`; give one, or couple the gates".into(),
            ),
        }
        gates
    }

    /// Whether this is what [`lstm_cell`] computes.
    fn is_usual(&self) -> bool {
        let is_sigmoid = matches!(self.gate_activation, Activation::Sigmoid(_));
        let is_tanh = |function: &Activation| matches!(function, Activation::Tanh(_));
        let are_usual = is_sigmoid && is_tanh(&self.cell_activation) && is_tanh(&self.hidden_activation);
        are_usual && !self.input_forget && self.clip.is_none()
    }

    /// The cell state in f32 at least, and the hidden state in the type of the products, of these [gates](Self::gates).
    fn step(&self, gates: Tensor<2>, cell: Tensor<2>) -> LstmState<2> {
        if self.is_usual()
            && let Some([cell, hidden]) = lstm_cell(&gates, &cell)
        {
            return LstmState::new(cell, hidden.cast(self.input_gate.dtype()));
        }
        let gate = |product| activated(&self.gate_activation, product);
        let (enters, leaves, candidate, stays) = match self.input_forget {
            true => {
                let [enters, leaves, candidate] = parts(gates);
                let enters = gate(enters);
                (enters.clone(), leaves, candidate, enters.neg().add_scalar(1.0))
            }
            false => {
                let [enters, leaves, candidate, stays] = parts(gates);
                (gate(enters), leaves, candidate, gate(stays))
            }
        };
        let candidate = activated(&self.cell_activation, candidate);
        let cell = clipped(stays * cell + enters * candidate, self.clip);
        let hidden = gate(leaves) * activated(&self.hidden_activation, cell.clone());
        LstmState::new(cell, hidden.cast(self.input_gate.dtype()))
    }
}

impl ModuleDisplay for Lstm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_input", &self.input_gate.d_input())
            .add("d_hidden", &self.d_hidden)
            .add("bias", &self.input_gate.has_bias())
            .add("placement", REPLICATED)
            .optional()
    }
}
