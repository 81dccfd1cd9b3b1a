//! Activation functions by name.

use burn::config::Config;
use burn::tensor::{Tensor, activation};
use epl_comm::custom_vjp;
use epl_core::model::precision::{cast, wide, widen};
use multiversion::multiversion;

use crate::host::{self, HostFloat, Owned, Real, host_float};

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
        match (self, host_float(&input)) {
            (Self::Relu, Some(HostFloat::Single)) => relu_host::<f32, D>(input),
            (Self::Relu, Some(HostFloat::Double)) => relu_host::<f64, D>(input),
            (Self::Relu, None) => activation::relu(input),
            (Self::Gelu, _) => smooth(Gelu, input),
            (Self::GeluNew, _) => smooth(GeluNew, input),
            (Self::Silu, _) => smooth(Silu, input),
        }
    }
}

/// max(x, 0), over the input if nobody else has it. What is kept is the output, as the product behind it does.
fn relu_host<T: Real, const D: usize>(input: Tensor<D>) -> Tensor<D> {
    custom_vjp(
        (input,),
        |(x,)| {
            let device = x.device();
            let mut x = Owned::<T>::take(x);
            host::for_blocks(x.slice_mut(), BLOCK, |_, x| {
                x.iter_mut().for_each(|x| *x = if *x < T::ZERO { T::ZERO } else { *x });
            });
            let y: Tensor<D> = x.into_tensor(&device);
            (y.clone(), y)
        },
        |y, grad| {
            let of_x = host::over_first(grad, y, |grad: &mut [T], y| {
                grad.iter_mut().zip(y).for_each(|(grad, y)| *grad = if *y <= T::ZERO { T::ZERO } else { *grad });
            });
            (Some(of_x),)
        },
    )
}

/// Elements of a task.
const BLOCK: usize = 1 << 13;

/// A function as one node of the graph: Burn's are made of up to nine.
pub(crate) trait Smooth: Copy + Send + Sync + 'static {
    /// The value and the derivative.
    fn of<T: Real>(self, x: T) -> (T, T);

    /// The same of tensors.
    fn of_tensor<const D: usize>(self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>);
}

#[derive(Clone, Copy)]
struct Gelu;
#[derive(Clone, Copy)]
struct GeluNew;
#[derive(Clone, Copy)]
struct Silu;
/// σ(x) = 1 / (1 + e^-x).
#[derive(Clone, Copy)]
pub(crate) struct Logistic;
#[derive(Clone, Copy)]
pub(crate) struct HyperbolicTangent;

impl Smooth for Gelu {
    #[inline(always)]
    fn of<T: Real>(self, x: T) -> (T, T) {
        let (half, one) = (T::of(0.5), T::ONE);
        let phi = half * (one + (x * T::of(core::f64::consts::FRAC_1_SQRT_2)).erf());
        (x * phi, phi + x * T::of(DENSITY) * (-half * x * x).exp())
    }

    fn of_tensor<const D: usize>(self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        let phi = ((x.clone() * core::f64::consts::FRAC_1_SQRT_2).erf() + 1.0) * 0.5;
        let density = (x.clone().square() * -0.5).exp() * DENSITY;
        (x.clone() * phi.clone(), phi + x * density)
    }
}

impl Smooth for GeluNew {
    #[inline(always)]
    fn of<T: Real>(self, x: T) -> (T, T) {
        let (one, two, three) = (T::ONE, T::of(2.0), T::of(3.0));
        let (root, cubic) = (T::of(ROOT), T::of(CUBIC));
        // (1 + tanh u) / 2 is the logistic function of 2 u, without the difference in which small values are lost.
        let (share, rest) = (two * root * (x + cubic * x * x * x)).sigmoid_and_rest();
        let steepness = two * x * share * rest;
        let slope = root * (one + three * cubic * x * x);
        // Where the function is flat, the slope may be infinite.
        (x * share, if steepness == T::ZERO { share } else { share + steepness * slope })
    }

    fn of_tensor<const D: usize>(self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        // From 100 on the function is flat: its slope, which may be infinite, must not be multiplied by zero.
        let square = x.clone().square().clamp_max(1e4);
        let tanh = (x.clone() * (square.clone() * CUBIC + 1.0) * ROOT).tanh();
        let phi = (tanh.clone() + 1.0) * 0.5;
        let slope = (square * (3.0 * CUBIC) + 1.0) * ROOT;
        let derivative = phi.clone() + x.clone() * (tanh.square().neg() + 1.0) * slope * 0.5;
        (x * phi, derivative)
    }
}

impl Smooth for Silu {
    #[inline(always)]
    fn of<T: Real>(self, x: T) -> (T, T) {
        let (sigmoid, rest) = x.sigmoid_and_rest();
        (x * sigmoid, sigmoid * (T::ONE + x * rest))
    }

    fn of_tensor<const D: usize>(self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        let sigmoid = activation::sigmoid(x.clone());
        let derivative = sigmoid.clone() * (x.clone() * (sigmoid.clone().neg() + 1.0) + 1.0);
        (x * sigmoid, derivative)
    }
}

impl Smooth for Logistic {
    #[inline(always)]
    fn of<T: Real>(self, x: T) -> (T, T) {
        let (sigmoid, rest) = x.sigmoid_and_rest();
        (sigmoid, sigmoid * rest)
    }

    fn of_tensor<const D: usize>(self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        let sigmoid = activation::sigmoid(x);
        (sigmoid.clone(), sigmoid.clone() * (sigmoid.neg() + 1.0))
    }
}

impl Smooth for HyperbolicTangent {
    #[inline(always)]
    fn of<T: Real>(self, x: T) -> (T, T) {
        let tanh = x.tanh();
        (tanh, T::ONE - tanh * tanh)
    }

    fn of_tensor<const D: usize>(self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        let tanh = x.tanh();
        (tanh.clone(), tanh.square().neg() + 1.0)
    }
}

/// √(2/π) and the cubic coefficient of the approximation (Hendrycks and Gimpel,
/// [arXiv:1606.08415](https://arxiv.org/abs/1606.08415)).
const ROOT: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

/// 1/√(2π), the largest density of the normal distribution.
const DENSITY: f64 = 0.398_942_280_401_432_7;

/// The function of every element; computed in f32 at least.
pub(crate) fn smooth<F: Smooth, const D: usize>(function: F, input: Tensor<D>) -> Tensor<D> {
    custom_vjp(
        (input,),
        |(x,)| {
            let dtype = x.dtype();
            if dtype == wide(dtype) {
                let (value, derivative) = value_and_derivative(function, x);
                return (value, Kept::Derivative(derivative));
            }
            let (value, _) = value_and_derivative(function, widen(x.clone()));
            (cast(value, dtype), Kept::Input(x))
        },
        move |kept, grad| {
            let of_x = match kept {
                Kept::Derivative(derivative) => times(derivative, grad),
                Kept::Input(x) => {
                    let (dtype, (_, derivative)) = (x.dtype(), value_and_derivative(function, widen(x)));
                    cast(times(derivative, widen(grad)), dtype)
                }
            };
            (Some(of_x),)
        },
    )
}

/// What backward needs: of 16 bits the input, so that the gradient is rounded once.
enum Kept<const D: usize> {
    Derivative(Tensor<D>),
    Input(Tensor<D>),
}

fn value_and_derivative<F: Smooth, const D: usize>(function: F, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
    match host_float(&x) {
        Some(HostFloat::Single) => on_host::<F, f32, D>(function, x),
        Some(HostFloat::Double) => on_host::<F, f64, D>(function, x),
        None => function.of_tensor(x),
    }
}

/// The value and the derivative, of which one takes the input's place if nobody else has it.
fn on_host<F: Smooth, T: Real, const D: usize>(function: F, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
    let (shape, device) = (x.dims(), x.device());
    let mut value = Owned::<T>::take(x);
    let count = shape.iter().product();
    let derivative = host::new_blocks2((count, BLOCK), (value.slice_mut(), BLOCK), |_, derivative, value| {
        block(function, value, derivative);
    });
    (value.into_tensor(&device), host::tensor(derivative, shape, &device))
}

#[multiversion(targets = "simd")]
fn block<F: Smooth, T: Real>(function: F, value: &mut [T], derivative: &mut [T]) {
    value.iter_mut().zip(derivative).for_each(|(x, derivative)| (*x, *derivative) = function.of(*x));
}

/// The product, over the first.
fn times<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    fn on_host<T: Real, const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
        host::over_first(a, b, |a: &mut [T], b| a.iter_mut().zip(b).for_each(|(a, b)| *a = *a * *b))
    }
    match host_float(&a) {
        Some(HostFloat::Single) => on_host::<f32, D>(a, b),
        Some(HostFloat::Double) => on_host::<f64, D>(a, b),
        None => a * b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{DType, Device};

    fn far<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> f32 {
        (a - b).abs().max().into_scalar::<f32>()
    }

    #[test]
    fn both_paths_agree_and_are_burns() {
        let device = Device::flex();
        let x = Tensor::<1>::from_data((-300..=300).map(|i| i as f32 / 30.0).collect::<Vec<_>>().as_slice(), &device);
        let check = |[ours, tensors]: [(Tensor<1>, Tensor<1>); 2], burns: Tensor<1>| {
            for difference in [far(ours.0.clone(), tensors.0), far(ours.1, tensors.1), far(ours.0, burns)] {
                assert!(difference < 5e-6, "{difference:e}");
            }
        };
        let at = || x.clone();
        check([on_host::<Gelu, f32, 1>(Gelu, at()), Gelu.of_tensor(at())], activation::gelu(at()));
        check([on_host::<GeluNew, f32, 1>(GeluNew, at()), GeluNew.of_tensor(at())], activation::gelu_approximate(at()));
        check([on_host::<Silu, f32, 1>(Silu, at()), Silu.of_tensor(at())], activation::silu(at()));
        check([on_host::<Logistic, f32, 1>(Logistic, at()), Logistic.of_tensor(at())], activation::sigmoid(at()));
        let tanh = [on_host::<HyperbolicTangent, f32, 1>(HyperbolicTangent, at()), HyperbolicTangent.of_tensor(at())];
        check(tanh, at().tanh());
    }

    #[test]
    fn gradients_are_those_of_burn() {
        let burns: [(Activation, fn(Tensor<1>) -> Tensor<1>); 4] = [
            (Activation::Relu, activation::relu),
            (Activation::Gelu, activation::gelu),
            (Activation::GeluNew, activation::gelu_approximate),
            (Activation::Silu, activation::silu),
        ];
        let device = Device::flex().autodiff();
        for (ours, burns) in burns {
            let x = Tensor::<1>::from_floats([-5.0, -3.0, -0.7, 0.0, 0.4, 2.5, 6.0], &device).require_grad();
            let y = ours.forward(x.clone());
            assert!(far(y.clone().inner(), burns(x.clone()).inner()) < 1e-6, "{ours:?}");
            let seed = Tensor::<1>::from_floats([1.0, 2.0, -1.0, 3.0, 0.5, 1.5, 1.0], &device);
            let of = |y: Tensor<1>| x.grad(&(y * seed.clone()).sum().backward()).unwrap();
            let (of_ours, of_burns) = (of(y), of(burns(x.clone())));
            assert!(far(of_ours.clone(), of_burns.clone()) < 1e-6, "{ours:?}: {of_ours} is not {of_burns}");
            assert_eq!(x.clone().into_data().iter::<f32>().next(), Some(-5.0), "an input that others have stays");
        }
    }

    #[test]
    fn large_inputs_have_their_values_and_gradients() {
        let device = Device::flex().autodiff();
        for activation in [Activation::Relu, Activation::Gelu, Activation::GeluNew, Activation::Silu] {
            for (dtype, size) in [30.0, 200.0, 1e13, 1e30].into_iter().flat_map(|x| [(DType::F32, x), (DType::F64, x)])
            {
                let x = Tensor::<1>::from_data([-size, size], (&device, dtype)).require_grad();
                let y = activation.forward(x.clone());
                let of_x = x.grad(&y.clone().sum().backward()).unwrap();
                let exact = Tensor::from_data([0.0, 1.0], (&device.clone().without_autodiff(), dtype));
                assert!(far(of_x.clone(), exact) < 1e-6, "{activation:?} of {x}: {of_x}");
                assert!(far(y.inner(), activation::relu(x.clone().inner())) < 1e-6, "{activation:?} of {x}");
            }
        }
    }

    #[test]
    fn tensor_operations_have_the_values_and_derivatives_of_large_inputs() {
        for (dtype, size) in [30.0, 200.0, 1e13, 1e30].into_iter().flat_map(|x| [(DType::F32, x), (DType::F64, x)]) {
            let x = Tensor::<1>::from_data([-size, size], (&Device::flex(), dtype));
            let at = || x.clone();
            let exact = Tensor::from_data([0.0, 1.0], (&Device::flex(), dtype));
            for (value, derivative) in [Gelu.of_tensor(at()), GeluNew.of_tensor(at()), Silu.of_tensor(at())] {
                assert!(far(derivative.clone(), exact.clone()) < 1e-6, "at {x}: {derivative}");
                assert!(far(value.clone(), activation::relu(at())) < 1e-6, "at {x}: {value}");
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        for activation in [Activation::Relu, Activation::Gelu, Activation::GeluNew, Activation::Silu] {
            let x = Tensor::<1>::from_floats([f32::NAN, f32::INFINITY, 1.0], &Device::flex());
            let y: Vec<f32> = activation.forward(x).into_data().iter::<f32>().collect();
            assert!(y[0].is_nan() && y[1] == f32::INFINITY && y[2].is_finite(), "{activation:?}: {y:?}");
        }
    }
}
