//! The activations that most models have, each as one pass over its input and one node of the graph.

use burn::module::Module;
use burn::tensor::Tensor;

use crate::activation::{Activation, HyperbolicTangent, Logistic, smooth};

/// Makes layers of one function.
macro_rules! layers {
    ($($(#[$doc:meta])* $layer:ident = |$input:ident| $computed:expr;)+) => {
        $($(#[$doc])*
        #[derive(Module, Debug, Default)]
        pub struct $layer;

        impl $layer {
            /// Creates the layer.
            pub fn new() -> Self {
                Self {}
            }

            /// Applies the function to every element; computed in f32 at least.
            ///
            /// # Shapes
            ///
            /// - input and output: `[..., any]`
            pub fn forward<const D: usize>(&self, $input: Tensor<D>) -> Tensor<D> {
                $computed
            }
        })+
    };
}

layers! {
    /// Burn's `Relu`: max(x, 0).
    Relu = |input| Activation::Relu.forward(input);
    /// Burn's `SiLU`: x σ(x), also called swish.
    SiLU = |input| Activation::Silu.forward(input);
    /// Burn's `Sigmoid`: σ(x) = 1 / (1 + e^-x).
    Sigmoid = |input| smooth(Logistic, input);
    /// Burn's `Tanh`: the hyperbolic tangent.
    Tanh = |input| smooth(HyperbolicTangent, input);
}

/// Burn's `Gelu`: x Φ(x), with the error function, or approximated by tanh.
#[derive(Module, Debug, Default)]
pub struct Gelu {
    /// Whether tanh stands in place of the error function.
    pub approximate: bool,
}

impl Gelu {
    /// Creates the layer, with the error function.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the layer, approximated by tanh.
    pub fn new_approximate() -> Self {
        Self { approximate: true }
    }

    /// Applies the function to every element; computed in f32 at least.
    ///
    /// # Shapes
    ///
    /// - input and output: `[..., any]`
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        if self.approximate { Activation::GeluNew.forward(input) } else { Activation::Gelu.forward(input) }
    }
}
