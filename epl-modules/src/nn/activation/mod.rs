//! Activation functions, and one that is chosen by its configuration: `burn::nn::activation`.

mod chosen;
mod elementwise;
mod prelu;
mod rrelu;
mod swiglu;

pub use burn::nn::activation::*;
pub use chosen::{Activation, ActivationConfig};
pub use elementwise::{Gelu, Relu, SiLU, Sigmoid, Tanh};
pub use prelu::{PRelu, PReluConfig};
pub use rrelu::{RRelu, RReluConfig};
pub use swiglu::{SwiGlu, SwiGluConfig};
