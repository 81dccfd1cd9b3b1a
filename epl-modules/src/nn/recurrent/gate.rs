//! The two linear layers of a gate, and those of several gates as one product.

use burn::module::Module;
use burn::nn::Initializer;
use burn::tensor::{DType, Tensor};
use epl_core::Place;
use epl_core::model::precision::widen;

use crate::linear::{Parameters, affine};
use crate::nn::activation::Activation;
use crate::nn::linear::{Linear, LinearConfig};

/// Burn's `GateController`, whole on every rank: a gate of a recurrent layer.
///
/// ```
/// # use burn::tensor::Tensor;
/// use epl_core::testing;
/// use epl_modules::nn::{GateController, Initializer};
///
/// testing::run((1, 1, 1), |epl| {
///     let gate = GateController::new(3, 2, true, Initializer::Ones, &epl.place().child("gate"));
///     let (input, hidden) = ([1, 3], [1, 2]);
///     let [input, hidden] = [input, hidden].map(|shape| Tensor::ones(shape, epl.place().device()));
///     let product = gate.gate_product(input, hidden);
///     assert_eq!(product.into_data().to_vec::<f32>().unwrap(), [3.0 + 1.0 + 2.0 + 1.0; 2]); // each part has a bias
///     Ok(())
/// });
/// ```
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
        let sum = widen(self.input_transform.forward(input)) + widen(self.hidden_transform.forward(hidden));
        sum.cast(self.dtype())
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

/// Linear layers of one input, whose products are made as one.
pub(super) struct Joined<'a> {
    layers: Vec<&'a Linear>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
}

impl<'a> Joined<'a> {
    /// Of what gates have for the input.
    pub(super) fn of_inputs(gates: &[&'a GateController]) -> Self {
        Self::of(gates.iter().map(|gate| &gate.input_transform).collect())
    }

    /// Of what gates have for the hidden state.
    pub(super) fn of_hidden(gates: &[&'a GateController]) -> Self {
        Self::of(gates.iter().map(|gate| &gate.hidden_transform).collect())
    }

    fn of(layers: Vec<&'a Linear>) -> Self {
        let (weights, biases): (Vec<_>, Vec<_>) = layers
            .iter()
            .map(|layer| {
                let Parameters { weight, bias, .. } = layer.parameters();
                (weight.row_major(), bias)
            })
            .unzip();
        let bias = biases.iter().any(Option::is_some).then(|| {
            let sizes = layers.iter().map(|layer| layer.sizes()[1]);
            let of = |(bias, size): (Option<Tensor<1>>, usize)| {
                bias.unwrap_or_else(|| Tensor::zeros([size], (&weights[0].device(), weights[0].dtype())))
            };
            joined(biases.into_iter().zip(sizes).map(of).collect(), 0)
        });
        Self { weight: joined(weights, 1), bias, layers }
    }

    /// The products, in f32 at least.
    ///
    /// # Shapes
    ///
    /// - x: `[rows, d_input]`
    /// - output: `[rows, layers * d_output]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the last dim is another.
    pub(super) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.layers.iter().for_each(|layer| layer.check_and_count(x.dims()));
        widen(affine(x, self.weight.clone(), self.bias.clone()))
    }
}

/// Tensors behind each other: in their type, or, where types differ, in f32 at least.
fn joined<const D: usize>(mut parts: Vec<Tensor<D>>, dim: usize) -> Tensor<D> {
    match parts.len() {
        1 => parts.remove(0),
        _ => {
            if parts.iter().any(|part| part.dtype() != parts[0].dtype()) {
                parts = parts.into_iter().map(widen).collect();
            }
            Tensor::cat(parts, dim)
        }
    }
}

/// The parts of a joined product, one a gate.
pub(super) fn parts<const N: usize>(products: Tensor<2>) -> [Tensor<2>; N] {
    let width = products.dims()[1] / N;
    std::array::from_fn(|gate| products.clone().narrow(1, gate * width, width))
}

/// The function of what is in f32 at least, in f32 at least.
pub(super) fn activated(function: &Activation, x: Tensor<2>) -> Tensor<2> {
    widen(function.forward(x))
}
