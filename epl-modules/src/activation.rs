//! Activation functions by name.

use burn::config::Config;
use burn::tensor::{Tensor, activation};
use epl_comm::custom_vjp;
use epl_core::model::precision::{in_wide, widen};
use multiversion::multiversion;

use crate::host::{self, HostFloat, Real, View, host_float};

/// An element-wise function between two linear layers.
#[derive(Config, Debug, Copy, PartialEq)]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// x Φ(x), with the error function.
    Gelu,
    /// x Φ(x), with Φ approximated by tanh; `gelu_new` in Hugging Face.
    GeluNew,
    /// x σ(x), also called swish.
    Silu,
}

impl Activation {
    /// Applies the function to every element; computed in f32 at least.
    ///
    /// # Shapes
    ///
    /// - input and output: `[..., any]`
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Relu => activation::relu(input),
            Self::Gelu => in_wide(input, activation::gelu),
            Self::GeluNew => gelu_new(input),
            Self::Silu => in_wide(input, activation::silu),
        }
    }
}

/// √(2/π) and the cubic coefficient of the approximation (Hendrycks and Gimpel,
/// [arXiv:1606.08415](https://arxiv.org/abs/1606.08415)).
const ROOT: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

/// The tanh approximation of GELU as one node of the graph: Burn's is made of nine.
fn gelu_new<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    custom_vjp(
        (input,),
        |(x,)| {
            let (dtype, x) = (x.dtype(), widen(x));
            let (value, derivative) = match host_float(&x) {
                Some(HostFloat::Single) => gelu_host::<f32, D>(x),
                Some(HostFloat::Double) => gelu_host::<f64, D>(x),
                None => gelu_tensors(x),
            };
            (value.cast(dtype), derivative.cast(dtype))
        },
        |derivative, grad| (Some(grad * derivative),),
    )
}

/// The value and the derivative.
fn gelu_host<T: Real, const D: usize>(x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
    const BLOCK: usize = 1 << 13;
    let (shape, device) = (x.dims(), x.device());
    let input = View::<T>::new(x);
    let mut value = input.slice().to_vec();
    drop(input);
    let mut derivative = vec![T::ZERO; value.len()];
    host::for_blocks2((&mut value, BLOCK), (&mut derivative, BLOCK), |_, value, derivative| {
        gelu_block(value, derivative);
    });
    (host::tensor(value, shape, &device), host::tensor(derivative, shape, &device))
}

#[multiversion(targets = "simd")]
fn gelu_block<T: Real>(value: &mut [T], derivative: &mut [T]) {
    let (half, one, two, three) = (T::of(0.5), T::ONE, T::of(2.0), T::of(3.0));
    let (root, cubic) = (T::of(ROOT), T::of(CUBIC));
    for (x, derivative) in value.iter_mut().zip(derivative) {
        let a = *x;
        let u = root * (a + cubic * a * a * a);
        let tanh = one - two / ((two * u).exp() + one);
        let slope = root * (one + three * cubic * a * a);
        *derivative = half * (one + tanh) + half * a * (one - tanh * tanh) * slope;
        *x = half * a * (one + tanh);
    }
}

fn gelu_tensors<const D: usize>(x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
    let square = x.clone().square();
    let tanh = (x.clone() * (square.clone() * CUBIC + 1.0) * ROOT).tanh();
    let phi = (tanh.clone() + 1.0) * 0.5;
    let slope = (square * (3.0 * CUBIC) + 1.0) * ROOT;
    let derivative = phi.clone() + x.clone() * (tanh.square().neg() + 1.0) * slope * 0.5;
    (x * phi, derivative)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    #[test]
    fn gelu_new_is_burns_approximation_and_both_paths_agree() {
        let device = Device::flex();
        let x = Tensor::<1>::from_data((-300..=300).map(|i| i as f32 / 30.0).collect::<Vec<_>>().as_slice(), &device);
        let (a, da) = gelu_host::<f32, 1>(x.clone());
        let (b, db) = gelu_tensors(x.clone());
        for difference in [a.clone() - b, da - db, a - activation::gelu_approximate(x)] {
            let difference = difference.abs().max().into_scalar::<f32>();
            assert!(difference < 5e-6, "{difference:e}");
        }
    }

    #[test]
    fn gradients_are_those_of_burn() {
        let device = Device::flex().autodiff();
        let x = Tensor::<1>::from_floats([-3.0, -0.7, 0.0, 0.4, 2.5], &device).require_grad();
        let ours = x.grad(&Activation::GeluNew.forward(x.clone()).sum().backward()).unwrap();
        let theirs = x.grad(&activation::gelu_approximate(x.clone()).sum().backward()).unwrap();
        assert!((ours - theirs).abs().max().into_scalar::<f32>() < 1e-6);
    }
}
