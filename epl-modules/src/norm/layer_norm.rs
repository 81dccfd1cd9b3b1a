//! Layer normalisation.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_comm::custom_vjp;
use epl_core::Place;
use epl_core::model::precision::{cast, widen};
use multiversion::multiversion;

use super::gamma::{factors, first_gamma};
use crate::host::{self, HostFloat, Owned, Real, View, host_float, sum_of};
use crate::invalid::{check_epsilon, check_last_dim, check_not_empty};
use crate::over_rows::sum_over_rows;
use crate::placement::REPLICATED;

/// Configuration to create a [`LayerNorm`] layer using the [init function](LayerNormConfig::init).
#[derive(Config, Debug)]
pub struct LayerNormConfig {
    /// The size of the input features.
    pub d_model: usize,
    /// A value required for numerical stability. Default: 1e-5
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether a bias is added. Default: true
    #[config(default = true)]
    pub bias: bool,
    /// Whether `gamma` is what the scale has beyond one, as of Gemma: it starts at zero, and weight decay draws the scale towards
    /// one. Default: false
    #[config(default = false)]
    pub zero_centered_gamma: bool,
    /// How `gamma` gets its first values. Default: such that the scale is one
    pub gamma_initializer: Option<Initializer>,
}

/// Subtracts the mean along the last dim, divides by the standard deviation, scales and shifts.
///
/// `Y = (X - mean(X)) / sqrt(var(X) + eps) * gamma + beta`, or `* (1 + gamma) + beta`
///
/// See [Layer normalization](https://arxiv.org/abs/1607.06450).
///
/// ```
/// use burn::tensor::Tensor;
/// use epl_core::testing;
/// use epl_modules::LayerNormConfig;
///
/// testing::run((1, 1, 1), |epl| {
///     let norm = LayerNormConfig::new(3).init(epl.place());
///     let x = Tensor::<2>::from_floats([[1.0, 2.0, 3.0]], epl.place().device());
///     let y: Vec<f32> = norm.forward(x).into_data().iter().collect();
///     assert!((y[0] + 1.2247).abs() < 1e-3 && y[1].abs() < 1e-5 && (y[2] - 1.2247).abs() < 1e-3);
///     Ok(())
/// });
/// ```
///
/// Should be created with [`LayerNormConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct LayerNorm {
    /// The learnable scale, `[d_model]`.
    pub gamma: Param<Tensor<1>>,
    /// The learnable shift, `[d_model]`.
    pub beta: Option<Param<Tensor<1>>>,
    /// A value required for numerical stability.
    pub epsilon: f64,
    /// The size of the input features.
    pub d_model: usize,
    /// Whether `gamma` is what the scale has beyond one.
    pub zero_centered_gamma: bool,
}

impl LayerNormConfig {
    /// Initializes a new [`LayerNorm`] layer, whose scale is one and whose `beta` is zero.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when there is no feature, or epsilon is not finite and positive.
    pub fn init(&self, place: &Place) -> LayerNorm {
        check_not_empty(place.path(), "a layer norm", &[("d_model", self.d_model)]);
        check_epsilon(place.path(), self.epsilon);
        let gamma = first_gamma(self.zero_centered_gamma, self.gamma_initializer.as_ref());
        LayerNorm {
            gamma: place.full_precision(place.param([self.d_model], gamma)),
            beta: self.bias.then(|| place.full_precision(place.param([self.d_model], Initializer::Zeros))),
            epsilon: self.epsilon,
            d_model: self.d_model,
            zero_centered_gamma: self.zero_centered_gamma,
        }
    }
}

impl LayerNorm {
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
        check_last_dim("layer norm", ("d_model", self.d_model), input.dims());
        let (gamma, epsilon) = (factors(self.gamma.val(), self.zero_centered_gamma), self.epsilon);
        match &self.beta {
            Some(beta) => custom_vjp(
                (input, gamma, beta.val()),
                |(x, gamma, beta)| normalise(x, gamma, Some(beta), epsilon),
                |saved, grad| {
                    let (grad_x, grad_gamma, grad_beta) = denormalise(saved, grad);
                    (Some(grad_x), Some(grad_gamma), Some(grad_beta))
                },
            ),
            None => custom_vjp(
                (input, gamma),
                |(x, gamma)| normalise(x, gamma, None, epsilon),
                |saved, grad| {
                    let (grad_x, grad_gamma, _) = denormalise(saved, grad);
                    (Some(grad_x), Some(grad_gamma))
                },
            ),
        }
    }
}

impl ModuleDisplay for LayerNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("epsilon", &self.epsilon)
            .add("bias", &self.beta.is_some())
            .add("zero_centered_gamma", &self.zero_centered_gamma)
            .add("placement", REPLICATED)
            .optional()
    }
}

/// What backward needs: (x − mean) / σ, 1 / σ with a last dim of 1, and the scale.
struct Saved<const D: usize> {
    normal: Tensor<D>,
    inverse: Tensor<D>,
    gamma: Tensor<1>,
}

type Grads<const D: usize> = (Tensor<D>, Tensor<1>, Tensor<1>);

/// In f32 at least; the output returns to the type of x.
fn normalise<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> (Tensor<D>, Saved<D>) {
    let (dtype, x) = (x.dtype(), widen(x));
    let (wide_gamma, beta) = (cast(gamma.clone(), x.dtype()), beta.map(|beta| cast(beta, x.dtype())));
    let (output, saved) = match host_float(&x) {
        Some(HostFloat::Single) => normalise_host::<f32, D>(x, wide_gamma, beta, epsilon),
        Some(HostFloat::Double) => normalise_host::<f64, D>(x, wide_gamma, beta, epsilon),
        None => normalise_tensors(x, wide_gamma, beta, epsilon),
    };
    (cast(output, dtype), Saved { gamma, ..saved })
}

/// As [`normalise`]; each gradient returns to the type of its input.
fn denormalise<const D: usize>(saved: Saved<D>, grad: Tensor<D>) -> Grads<D> {
    let (dtype, wide, gamma_dtype) = (grad.dtype(), saved.normal.dtype(), saved.gamma.dtype());
    let (saved, grad) = (Saved { gamma: cast(saved.gamma, wide), ..saved }, cast(grad, wide));
    let (grad_x, grad_gamma, grad_beta) = match host_float(&grad) {
        Some(HostFloat::Single) => denormalise_host::<f32, D>(saved, grad),
        Some(HostFloat::Double) => denormalise_host::<f64, D>(saved, grad),
        None => denormalise_tensors(saved, grad),
    };
    (cast(grad_x, dtype), cast(grad_gamma, gamma_dtype), cast(grad_beta, gamma_dtype))
}

fn normalise_host<T: Real, const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> (Tensor<D>, Saved<D>) {
    let (shape, device, d) = (x.dims(), x.device(), x.dims()[D - 1]);
    let rows = host::rows_a_task(d);
    let scale = View::<T>::new(gamma.clone());
    let shift = beta.map_or_else(|| vec![T::ZERO; d], |beta| View::<T>::new(beta).slice().to_vec());
    let mut normal = Owned::<T>::take(x);
    let count = normal.slice_mut().len();
    let mut inverse = vec![T::ZERO; count / d];
    host::for_blocks2((normal.slice_mut(), rows * d), (&mut inverse, rows), |_, x, inverse| {
        standardise(x, d, T::of(epsilon), inverse);
    });
    let normal = normal.into_tensor::<D>(&device);
    let values = View::<T>::new(normal.clone());
    let output = host::new_blocks(count, rows * d, |block, output| {
        let first = block * rows * d;
        scale_shift(&values.slice()[first..first + output.len()], scale.slice(), &shift, output);
    });
    let mut one_a_row = shape;
    one_a_row[D - 1] = 1;
    let output = host::tensor(output, shape, &device);
    (output, Saved { normal, inverse: host::tensor(inverse, one_a_row, &device), gamma })
}

#[multiversion(targets = "simd")]
fn standardise<T: Real>(x: &mut [T], d: usize, epsilon: T, inverse: &mut [T]) {
    for (x, inverse) in x.chunks_exact_mut(d).zip(inverse) {
        let mean = sum_of(x, x, |a, _| a) / T::of(d as f64);
        let variance = sum_of(x, x, |a, _| (a - mean) * (a - mean)) / T::of(d as f64);
        let r = T::ONE / (variance + epsilon).sqrt();
        *inverse = r;
        x.iter_mut().for_each(|x| *x = (*x - mean) * r);
    }
}

#[multiversion(targets = "simd")]
fn scale_shift<T: Real>(x: &[T], gamma: &[T], beta: &[T], output: &mut [T]) {
    let d = gamma.len();
    for (x, y) in x.chunks_exact(d).zip(output.chunks_exact_mut(d)) {
        for ((y, x), (gamma, beta)) in y.iter_mut().zip(x).zip(gamma.iter().zip(beta)) {
            *y = *x * *gamma + *beta;
        }
    }
}

fn denormalise_host<T: Real, const D: usize>(saved: Saved<D>, grad: Tensor<D>) -> Grads<D> {
    let (device, d) = (grad.device(), grad.dims()[D - 1]);
    let rows = host::rows_a_task(d);
    let (normal, gamma) = (View::<T>::new(saved.normal), View::<T>::new(saved.gamma));
    let inverse = View::<T>::new(saved.inverse);
    let mut grad = Owned::<T>::take(grad);
    let blocks = inverse.slice().len().div_ceil(rows);
    let mut partials = vec![T::ZERO; blocks * 2 * d];
    host::for_blocks2((grad.slice_mut(), rows * d), (&mut partials, 2 * d), |block, grad, partial| {
        let first = block * rows;
        let inverse = &inverse.slice()[first..first + grad.len() / d];
        let normal = &normal.slice()[first * d..first * d + grad.len()];
        spread(normal, gamma.slice(), inverse, grad, partial);
    });
    let mut grad_gamma = host::sum_blocks(&partials, 2 * d);
    let grad_beta = grad_gamma.split_off(d);
    (grad.into_tensor(&device), host::tensor(grad_gamma, [d], &device), host::tensor(grad_beta, [d], &device))
}

/// With n = (x − mean) / σ and h = gradient · γ: ∂x = (h − mean(h) − n mean(h n)) / σ, ∂γ = Σ over rows
/// (gradient · n), ∂β = Σ over rows gradient.
#[multiversion(targets = "simd")]
fn spread<T: Real>(normal: &[T], gamma: &[T], inverse: &[T], grad: &mut [T], partial: &mut [T]) {
    let d = gamma.len();
    let (grad_gamma, grad_beta) = partial.split_at_mut(d);
    for ((normal, grad), r) in normal.chunks_exact(d).zip(grad.chunks_exact_mut(d)).zip(inverse) {
        for (j, grad) in grad.iter_mut().enumerate() {
            grad_gamma[j] += *grad * normal[j];
            grad_beta[j] += *grad;
            *grad = *grad * gamma[j];
        }
        let mean = sum_of(grad, grad, |h, _| h) / T::of(d as f64);
        let along = sum_of(grad, normal, |h, n| h * n) / T::of(d as f64);
        for (grad, n) in grad.iter_mut().zip(normal) {
            *grad = (*grad - mean - *n * along) * *r;
        }
    }
}

fn normalise_tensors<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> (Tensor<D>, Saved<D>) {
    let centred = x.clone() - x.mean_dim(D - 1);
    let inverse = (centred.clone().square().mean_dim(D - 1) + epsilon).sqrt().recip();
    let normal = centred * inverse.clone();
    let scaled = normal.clone() * gamma.clone().unsqueeze();
    let output = match beta {
        Some(beta) => scaled + beta.unsqueeze(),
        None => scaled,
    };
    (output, Saved { normal, inverse, gamma })
}

fn denormalise_tensors<const D: usize>(saved: Saved<D>, grad: Tensor<D>) -> Grads<D> {
    let (Saved { normal, inverse, gamma }, d) = (saved, grad.dims()[D - 1]);
    let rows = grad.shape().num_elements() / d;
    let over_rows = |x: Tensor<D>| sum_over_rows(x.reshape([rows, d]));
    let (grad_gamma, grad_beta) = (over_rows(grad.clone() * normal.clone()), over_rows(grad.clone()));
    let h = grad * gamma.unsqueeze();
    let along = (h.clone() * normal.clone()).mean_dim(D - 1);
    ((h.clone() - h.mean_dim(D - 1) - normal * along) * inverse, grad_gamma, grad_beta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Distribution};

    #[test]
    fn both_paths_agree() {
        let (device, normal) = (Device::flex(), Distribution::Normal(1.0, 1.0));
        let [x, grad] = [(); 2].map(|()| Tensor::<3>::random([5, 7, 33], normal, &device));
        let [gamma, beta] = [(); 2].map(|()| Tensor::<1>::random([33], normal, &device));
        let (a, saved_a) = normalise_host::<f32, 3>(x.clone(), gamma.clone(), Some(beta.clone()), 1e-6);
        let (b, saved_b) = normalise_tensors(x, gamma, Some(beta), 1e-6);
        let (ax, ag, ab) = denormalise_host::<f32, 3>(saved_a, grad.clone());
        let (bx, bg, bb) = denormalise_tensors(saved_b, grad);
        for difference in [(a - b).abs().max(), (ax - bx).abs().max(), (ag - bg).abs().max(), (ab - bb).abs().max()] {
            assert!(difference.into_scalar::<f32>() < 5e-5);
        }
    }
}
