//! Root mean square normalisation.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_comm::{ProcessGroup, copied, custom_vjp};
use epl_core::Place;
use epl_core::model::precision::{cast, widen};
use multiversion::multiversion;

use super::gamma::{factors, first_gamma};
use crate::host::{self, HostFloat, Owned, Real, View, host_float, sum_of};
use crate::invalid::{check_epsilon, check_last_dim, check_not_empty};
use crate::over_rows::sum_over_rows;
use crate::placement::REPLICATED;

/// Configuration to create an [`RmsNorm`] layer using the [init function](RmsNormConfig::init).
#[derive(Config, Debug)]
pub struct RmsNormConfig {
    /// The size of the input features.
    pub d_model: usize,
    /// A value required for numerical stability. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether `gamma` is what the scale has beyond one, as of Gemma: it starts at zero, and weight decay draws the scale towards
    /// one. Default: false
    #[config(default = false)]
    pub zero_centered_gamma: bool,
    /// How `gamma` gets its first values. Default: such that the scale is one
    pub gamma_initializer: Option<Initializer>,
}

/// Divides by the root mean square along the last dim and scales: no mean is subtracted, no bias added.
///
/// `Y = X / sqrt(mean(X^2) + eps) * gamma`, or `* (1 + gamma)`
///
/// See [Root mean square layer normalization](https://arxiv.org/abs/1910.07467); it is also T5's layer norm.
///
/// ```
/// # use burn::tensor::Tensor;
/// # use epl_core::testing;
/// use epl_modules::RmsNormConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let norm = RmsNormConfig::new(2).init(&epl.place().child("norm"));
///     let y = norm.forward(Tensor::<2>::from_floats([[3.0, 4.0]], epl.place().device())).into_data().to_vec::<f32>().unwrap();
///     let root = 12.5_f32.sqrt(); // of the mean of 9 and 16; the mean of 3 and 4 stays
///     assert!((y[0] - 3.0 / root).abs() < 1e-5 && (y[1] - 4.0 / root).abs() < 1e-5);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`RmsNormConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct RmsNorm {
    /// The learnable scale, `[d_model]`.
    pub gamma: Param<Tensor<1>>,
    /// A value required for numerical stability.
    pub epsilon: f64,
    /// The size of the input features.
    pub d_model: usize,
    /// Whether `gamma` is what the scale has beyond one.
    pub zero_centered_gamma: bool,
}

impl RmsNormConfig {
    /// Initializes a new [`RmsNorm`] layer, whose scale is one.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there is no feature, or epsilon is not finite and positive.
    pub fn init(&self, place: &Place) -> RmsNorm {
        check_not_empty(place.path(), "an RMS norm", &[("d_model", self.d_model)]);
        check_epsilon(place.path(), self.epsilon);
        let Self { d_model, epsilon, zero_centered_gamma, .. } = *self;
        let gamma = first_gamma(zero_centered_gamma, self.gamma_initializer.as_ref());
        let gamma = place.full_precision(place.param([d_model], gamma));
        RmsNorm { gamma, epsilon, d_model, zero_centered_gamma }
    }
}

impl RmsNorm {
    /// Normalises along the last dim.
    ///
    /// # Shapes
    ///
    /// - input: `[..., d_model]`
    /// - output: `[..., d_model]`
    ///
    /// # Errors
    ///
    /// Unwinds with an error when the last dim is another.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        self.normalise(input, self.gamma.val())
    }

    /// Normalises this member's part of a tensor that is split along another dim than the last one: the gradient of the scale
    /// is a sum over all parts.
    pub(crate) fn forward_part<const D: usize>(&self, input: Tensor<D>, group: &ProcessGroup) -> Tensor<D> {
        self.normalise(input, copied(self.gamma.val(), group).local())
    }

    fn normalise<const D: usize>(&self, input: Tensor<D>, gamma: Tensor<1>) -> Tensor<D> {
        check_last_dim("RMS norm", ("d_model", self.d_model), input.dims());
        let epsilon = self.epsilon;
        custom_vjp(
            (input, factors(gamma, self.zero_centered_gamma)),
            |(x, gamma)| forward(x, gamma, epsilon),
            |saved, grad| {
                let (grad_x, grad_gamma) = backward(saved, grad);
                (Some(grad_x), Some(grad_gamma))
            },
        )
    }
}

impl ModuleDisplay for RmsNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("epsilon", &self.epsilon)
            .add("zero_centered_gamma", &self.zero_centered_gamma)
            .add("placement", REPLICATED)
            .optional()
    }
}

/// What backward needs: the inputs, and 1 / sqrt(mean(x²) + ε) with a last dim of 1.
struct Saved<const D: usize> {
    x: Tensor<D>,
    gamma: Tensor<1>,
    inverse: Tensor<D>,
}

/// In f32 at least; the output returns to the type of x.
fn forward<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> (Tensor<D>, Saved<D>) {
    let (dtype, wide_x) = (x.dtype(), widen(x.clone()));
    let wide_gamma = cast(gamma.clone(), wide_x.dtype());
    let (output, inverse) = match host_float(&wide_x) {
        Some(HostFloat::Single) => forward_host::<f32, D>(wide_x, wide_gamma, epsilon),
        Some(HostFloat::Double) => forward_host::<f64, D>(wide_x, wide_gamma, epsilon),
        None => forward_tensors(wide_x, wide_gamma, epsilon),
    };
    (cast(output, dtype), Saved { x, gamma, inverse })
}

/// As forward; each gradient returns to the type of its input.
fn backward<const D: usize>(saved: Saved<D>, grad: Tensor<D>) -> (Tensor<D>, Tensor<1>) {
    let Saved { x, gamma, inverse } = saved;
    let (dtype, gamma_dtype, x) = (x.dtype(), gamma.dtype(), widen(x));
    let (gamma, grad) = (cast(gamma, x.dtype()), cast(grad, x.dtype()));
    let saved = Saved { x, gamma, inverse };
    let (grad_x, grad_gamma) = match host_float(&grad) {
        Some(HostFloat::Single) => backward_host::<f32, D>(saved, grad),
        Some(HostFloat::Double) => backward_host::<f64, D>(saved, grad),
        None => backward_tensors(saved, grad),
    };
    (cast(grad_x, dtype), cast(grad_gamma, gamma_dtype))
}

/// The shape of one number a row.
fn one_a_row<const D: usize>(mut shape: [usize; D]) -> [usize; D] {
    shape[D - 1] = 1;
    shape
}

/// The output, and 1 / sqrt(mean(x²) + ε).
fn forward_host<T: Real, const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> (Tensor<D>, Tensor<D>) {
    let (shape, device, d) = (x.dims(), x.device(), x.dims()[D - 1]);
    let rows = host::rows_a_task(d);
    let (input, scale) = (View::<T>::new(x), View::<T>::new(gamma));
    let count = input.slice().len();
    let mut inverse = vec![T::ZERO; count / d];
    let output = host::new_blocks2((count, rows * d), (&mut inverse, rows), |block, output, inverse| {
        let first = block * rows * d;
        normalise(&input.slice()[first..first + output.len()], scale.slice(), T::of(epsilon), output, inverse);
    });
    (host::tensor(output, shape, &device), host::tensor(inverse, one_a_row(shape), &device))
}

#[multiversion(targets = "simd")]
fn normalise<T: Real>(x: &[T], gamma: &[T], epsilon: T, output: &mut [T], inverse: &mut [T]) {
    let d = gamma.len();
    for ((x, y), inverse) in x.chunks_exact(d).zip(output.chunks_exact_mut(d)).zip(inverse) {
        let r = T::ONE / (sum_of(x, x, |a, b| a * b) / T::of(d as f64) + epsilon).sqrt();
        *inverse = r;
        for ((y, x), gamma) in y.iter_mut().zip(x).zip(gamma) {
            *y = *x * r * *gamma;
        }
    }
}

fn backward_host<T: Real, const D: usize>(saved: Saved<D>, grad: Tensor<D>) -> (Tensor<D>, Tensor<1>) {
    let (device, d) = (grad.device(), grad.dims()[D - 1]);
    let rows = host::rows_a_task(d);
    let (x, gamma) = (View::<T>::new(saved.x), View::<T>::new(saved.gamma));
    let inverse = View::<T>::new(saved.inverse);
    let mut grad = Owned::<T>::take(grad);
    let blocks = inverse.slice().len().div_ceil(rows);
    let mut partials = vec![T::ZERO; blocks * d];
    host::for_blocks2((grad.slice_mut(), rows * d), (&mut partials, d), |block, grad, partial| {
        let first = block * rows;
        let inverse = &inverse.slice()[first..first + grad.len() / d];
        let x = &x.slice()[first * d..first * d + grad.len()];
        denormalise(x, gamma.slice(), inverse, grad, partial);
    });
    let grad_gamma = host::sum_blocks(&partials, d);
    (grad.into_tensor(&device), host::tensor(grad_gamma, [d], &device))
}

/// With r = 1 / sqrt(mean(x²) + ε) and h = gradient · γ: ∂x = r h − r³ x Σ(h x) / d, ∂γ = Σ over rows (gradient · x r).
#[multiversion(targets = "simd")]
fn denormalise<T: Real>(x: &[T], gamma: &[T], inverse: &[T], grad: &mut [T], partial: &mut [T]) {
    let d = gamma.len();
    for ((x, grad), r) in x.chunks_exact(d).zip(grad.chunks_exact_mut(d)).zip(inverse) {
        let r = *r;
        for ((grad, x), (partial, gamma)) in grad.iter_mut().zip(x).zip(partial.iter_mut().zip(gamma)) {
            *partial += *grad * *x * r;
            *grad = *grad * *gamma;
        }
        let along = sum_of(grad, x, |h, x| h * x) * r * r * r / T::of(d as f64);
        for (grad, x) in grad.iter_mut().zip(x) {
            *grad = *grad * r - *x * along;
        }
    }
}

fn forward_tensors<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> (Tensor<D>, Tensor<D>) {
    let inverse = (x.clone().square().mean_dim(D - 1) + epsilon).sqrt().recip();
    (x * inverse.clone() * gamma.unsqueeze(), inverse)
}

fn backward_tensors<const D: usize>(saved: Saved<D>, grad: Tensor<D>) -> (Tensor<D>, Tensor<1>) {
    let (Saved { x, gamma, inverse }, d) = (saved, grad.dims()[D - 1]);
    let x = x * inverse.clone();
    let rows = grad.shape().num_elements() / d;
    let grad_gamma = sum_over_rows((grad.clone() * x.clone()).reshape([rows, d]));
    let h = grad * gamma.unsqueeze();
    let along = (h.clone() * x.clone()).mean_dim(D - 1);
    ((h - x * along) * inverse, grad_gamma)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Distribution};

    #[test]
    fn both_paths_agree() {
        let device = Device::flex();
        let normal = Distribution::Normal(0.0, 1.0);
        let x = Tensor::<3>::random([5, 7, 33], normal, &device);
        let (gamma, grad) =
            (Tensor::<1>::random([33], normal, &device), Tensor::<3>::random([5, 7, 33], normal, &device));
        let (a, inverse_a) = forward_host::<f32, 3>(x.clone(), gamma.clone(), 1e-6);
        let (b, inverse_b) = forward_tensors(x.clone(), gamma.clone(), 1e-6);
        let saved = |inverse| Saved { x: x.clone(), gamma: gamma.clone(), inverse };
        let (ax, ag) = backward_host::<f32, 3>(saved(inverse_a), grad.clone());
        let (bx, bg) = backward_tensors(saved(inverse_b), grad);
        for difference in [(a - b).abs().max(), (ax - bx).abs().max(), (ag - bg).abs().max()] {
            assert!(difference.into_scalar::<f32>() < 2e-5);
        }
    }
}
