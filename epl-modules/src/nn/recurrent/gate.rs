//! The two linear layers of a gate.

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{DType, Tensor};
use epl_core::Place;
use epl_core::model::precision::widen;

use crate::nn::activation::Activation;
use crate::nn::linear::{Linear, LinearConfig};

/// Burn's `GateController`, whole on every rank: a gate of a recurrent layer.
#[derive(Module, Debug)]
pub struct GateController {
    /// Of the input.
    pub input_transform: Linear,
    /// Of the hidden state.
    pub hidden_transform: Linear,
}

impl GateController {
    /// Initializes a new gate.
    pub fn new(d_input: usize, d_output: usize, bias: bool, initializer: Initializer, place: &Place) -> Self {
        let of = |features: usize, name: &str| {
            let config = LinearConfig::new(features, d_output).with_bias(bias);
            config.with_initializer(initializer.clone()).init_whole(&place.child(name))
        };
        Self { input_transform: of(d_input, "input_transform"), hidden_transform: of(d_output, "hidden_transform") }
    }

    /// What an activation makes a gate's value of: `x Wx + bx + h Wh + bh`, added in f32 at least, in the type of the weights.
    ///
    /// # Shapes
    ///
    /// - input: `[batch_size, d_input]`
    /// - hidden: `[batch_size, d_output]`
    /// - output: `[batch_size, d_output]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when a last dim is another.
    pub fn gate_product(&self, input: Tensor<2>, hidden: Tensor<2>) -> Tensor<2> {
        self.wide_product(input, hidden).cast(self.dtype())
    }

    /// The same in f32 at least.
    pub(super) fn wide_product(&self, input: Tensor<2>, hidden: Tensor<2>) -> Tensor<2> {
        widen(self.input_transform.forward(input)) + widen(self.hidden_transform.forward(hidden))
    }

    /// The same with the hidden state's part times `reset`.
    pub(super) fn reset_product(&self, input: Tensor<2>, hidden: Tensor<2>, reset: Tensor<2>) -> Tensor<2> {
        widen(self.input_transform.forward(input)) + reset.mul(widen(self.hidden_transform.forward(hidden)))
    }

    /// The type of the products.
    pub(super) fn dtype(&self) -> DType {
        self.input_transform.weight.val().dtype()
    }

    pub(super) fn d_input(&self) -> usize {
        self.input_transform.sizes()[0]
    }

    pub(super) fn has_bias(&self) -> bool {
        self.input_transform.bias.is_some()
    }
}

/// The function of what is in f32 at least, in f32 at least.
pub(super) fn activated(function: &Activation, x: Tensor<2>) -> Tensor<2> {
    widen(function.forward(x))
}
