//! A limit that values come near and do not pass.

use burn::tensor::Tensor;

use crate::activation::{Smooth, smooth};
use crate::host::Real;
use crate::invalid::refuse;

/// `cap · tanh(x / cap)`, as one node of the graph: small values stay, large ones come near `cap` and `-cap`. Gemma 2
/// ([arXiv:2408.00118](https://arxiv.org/abs/2408.00118)) has it over the scores of attention and over its logits. Computed in
/// f32 at least.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<1>::from_floats([0.1, 1e6], &Device::flex());
/// let capped: Vec<f32> = epl_modules::softcap(x, 30.0).into_data().iter().collect();
/// assert!((capped[0] - 0.1).abs() < 1e-4 && (capped[1] - 30.0).abs() < 1e-4);
/// ```
///
/// # Shapes
///
/// - input and output: `[..., any]`
///
/// # Errors
///
/// Unwinds with an error when `cap` is not finite and positive.
pub fn softcap<const D: usize>(input: Tensor<D>, cap: f64) -> Tensor<D> {
    smooth(Softcap::new(cap).unwrap_or_else(|fault| refuse(fault)), input)
}

/// The function, with its derivative.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Softcap(f64);

impl Softcap {
    /// The function, or what is wrong with the number.
    pub(crate) fn new(cap: f64) -> Result<Self, String> {
        if cap.is_finite() && cap > 0.0 {
            return Ok(Self(cap));
        }
        Err(format!("a softcap of {cap}; it should be finite and positive, 30 and 50 are usual"))
    }
}

impl Smooth for Softcap {
    #[inline(always)]
    fn of<T: Real>(self, x: T) -> (T, T) {
        let (cap, two) = (T::of(self.0), T::of(2.0));
        let inside = x / cap;
        // The derivative of tanh u is 4 σ(2 u) σ(-2 u): without the difference 1 - tanh² u, in which small ones are lost.
        let (share, rest) = (two * inside).sigmoid_and_rest();
        (cap * inside.tanh(), two * two * share * rest)
    }

    fn of_tensor<const D: usize>(self, x: Tensor<D>) -> (Tensor<D>, Tensor<D>) {
        let tanh = (x * (1.0 / self.0)).tanh();
        let derivative = tanh.clone().square().neg() + 1.0;
        (tanh * self.0, derivative)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device};

    use super::*;

    fn values<const D: usize>(x: Tensor<D>) -> Vec<f64> {
        x.into_data().iter::<f64>().collect()
    }

    #[test]
    fn both_paths_are_the_formula_with_its_gradient() {
        for (dtype, limit) in [(DType::F32, 2e-6), (DType::F64, 1e-12)] {
            let at: Vec<f64> = (-200..=200).map(|i| f64::from(i) / 10.0).collect();
            let x = Tensor::<1>::from_data(at.as_slice(), (&Device::flex().autodiff(), dtype)).require_grad();
            let y = softcap(x.clone(), 3.0);
            let slopes = values(x.grad(&y.clone().sum().backward()).expect("x is tracked"));
            let (by_tensors, of_tensors) = Softcap::new(3.0).unwrap().of_tensor(x.clone().inner());
            let found = values(y).into_iter().zip(slopes).zip(values(by_tensors).into_iter().zip(values(of_tensors)));
            for (x, ((y, slope), (by_tensors, of_tensors))) in at.iter().zip(found) {
                let (exact, derivative) = (3.0 * (x / 3.0).tanh(), (x / 3.0).cosh().powi(-2));
                for far in [y - exact, by_tensors - exact, slope - derivative, of_tensors - derivative] {
                    assert!(far.abs() < limit, "{x} in {dtype:?}: off by {far:e}");
                }
                // Where the function is flat, too: the difference of 1 and a number near it has no digits there in f32.
                assert!((slope / derivative - 1.0).abs() < 1e-5, "{x} in {dtype:?}: {slope:e}, not {derivative:e}");
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none_and_what_is_infinite_is_the_limit() {
        let x = Tensor::<1>::from_floats([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30], &Device::flex());
        let y = values(softcap(x, 3.0));
        assert!(y[0].is_nan() && y[1..] == [3.0, -3.0, 3.0], "{y:?}");
    }

    #[test]
    fn a_limit_that_is_none_is_refused() {
        for cap in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let x = Tensor::<1>::from_floats([1.0], &Device::flex());
            let error = epl_comm::catch(|| softcap(x, cap)).unwrap_err().to_string();
            assert!(error.contains(&format!("a softcap of {cap}; it should be finite and positive")), "{error}");
        }
    }
}
