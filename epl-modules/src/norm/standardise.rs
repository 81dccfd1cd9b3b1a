//! (x − mean) / σ · γ + β, channel by channel, where mean and σ are those of a batch.
//!
//! With n = (x − mean) / σ, g the gradient of the output, and N the values that mean and σ were taken over, on all
//! ranks:
//!
//! ```text
//! ∂γ = Σ own g n       ∂β = Σ own g       ∂x = γ / σ · (g − Σ all g / N − n · Σ all g n / N)
//! ```
//!
//! Each rank has a loss of its own, and their sum is meant: what the others' losses owe to this rank's values is in
//! the two sums over all ranks, which one all-reduce brings. ∂γ and ∂β stay partial, as those of any replicated
//! parameter, until the engine reduces them over the replicas.

use burn::tensor::Tensor;
use epl_comm::{ProcessGroup, ReduceOp, custom_vjp, unwind};
use epl_core::model::precision::{cast, widen};
use multiversion::multiversion;

use super::statistics::{a_channel, sum_of_channels};
use crate::host::{self, HostFloat, LANES, Owned, Real, View, host_float, sum_of};

/// What a batch is normalised with: plain tensors, in f32 at least.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// `[channels]`
    pub mean: Tensor<1>,
    /// 1 / σ, `[channels]`
    pub inverse: Tensor<1>,
    /// How many values of a channel they were taken over, `[1]`.
    pub count: Tensor<1>,
    /// Whether the input's own values are among these.
    pub counts: bool,
    /// The ranks whose values they were taken over; `None` for this rank's alone.
    pub group: Option<ProcessGroup>,
}

/// What backward needs.
struct Saved<const D: usize> {
    x: Tensor<D>,
    gamma: Tensor<1>,
    scale: Scale,
}

/// Normalises, scales and shifts. With a group, backward is a collective.
///
/// # Shapes
///
/// - input and result: `[rows, channels, ...]`
/// - gamma, beta: `[channels]`
pub(super) fn standardise<const D: usize>(
    input: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    scale: Scale,
) -> Tensor<D> {
    custom_vjp(
        (input, gamma, beta),
        |(x, gamma, beta)| (forward(x.clone(), gamma.clone(), beta, &scale), Saved { x, gamma, scale }),
        |saved, grad| {
            let (grad_x, grad_gamma, grad_beta) = backward(saved, grad);
            (Some(grad_x), Some(grad_gamma), Some(grad_beta))
        },
    )
}

/// `[rows, channels, ...]` to `[rows, channels, inner]`.
pub(super) fn flat<const D: usize>(x: Tensor<D>) -> Tensor<3> {
    let dims = x.dims();
    x.reshape([dims[0], dims[1], dims[2..].iter().product()])
}

/// The element type of the loops over host memory, if they are worth it.
fn looped(x: &Tensor<3>) -> Option<HostFloat> {
    host_float(x).filter(|_| x.dims()[2] >= LANES)
}

/// In f32 at least; the result returns to the type of x.
fn forward<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, beta: Tensor<1>, scale: &Scale) -> Tensor<D> {
    let (shape, dtype) = (x.dims(), x.dtype());
    let x = flat(widen(x));
    let (factor, beta) = (scale.inverse.clone() * cast(gamma, x.dtype()), cast(beta, x.dtype()));
    let y = match looped(&x) {
        Some(HostFloat::Single) => forward_host::<f32>(x, [&scale.mean, &factor, &beta]),
        Some(HostFloat::Double) => forward_host::<f64>(x, [&scale.mean, &factor, &beta]),
        None => {
            let centred = x - a_channel(scale.mean.clone());
            centred * a_channel(factor) + a_channel(beta)
        }
    };
    cast(y, dtype).reshape(shape)
}

fn forward_host<T: Real>(x: Tensor<3>, [mean, factor, beta]: [&Tensor<1>; 3]) -> Tensor<3> {
    let (shape, device) = (x.dims(), x.device());
    let [_, channels, inner] = shape;
    let block = host::rows_a_task(channels * inner) * channels * inner;
    let [mean, factor, beta] = [mean, factor, beta].map(|x| View::<T>::new(x.clone()));
    let x = View::<T>::new(x);
    let y = host::new_blocks(x.slice().len(), block, |index, y| {
        let first = index * block;
        let x = &x.slice()[first..first + y.len()];
        shift_scale(x, y, inner, [mean.slice(), factor.slice(), beta.slice()]);
    });
    host::tensor(y, shape, &device)
}

/// y = (x − mean) · factor + beta. Subtracted first: a mean that is large beside σ would swallow the digits of x.
#[multiversion(targets = "simd")]
fn shift_scale<T: Real>(x: &[T], y: &mut [T], inner: usize, [mean, factor, beta]: [&[T]; 3]) {
    let runs = x.chunks_exact(inner).zip(y.chunks_exact_mut(inner));
    for (index, (x, y)) in runs.enumerate() {
        let channel = index % mean.len();
        let (mean, factor, beta) = (mean[channel], factor[channel], beta[channel]);
        x.iter().zip(y).for_each(|(x, y)| *y = (*x - mean) * factor + beta);
    }
}

type Grads<const D: usize> = (Tensor<D>, Tensor<1>, Tensor<1>);

/// As forward; each gradient returns to the type of its input.
fn backward<const D: usize>(saved: Saved<D>, grad: Tensor<D>) -> Grads<D> {
    let Saved { x, gamma, scale } = saved;
    let (shape, dtype, gamma_dtype) = (x.dims(), x.dtype(), gamma.dtype());
    let x = flat(widen(x));
    let (wide, grad) = (x.dtype(), cast(flat(grad), x.dtype()));
    let kind = looped(&x);
    let [along, plain] = match kind {
        Some(HostFloat::Single) => sums_host::<f32>(&x, &grad, &scale),
        Some(HostFloat::Double) => sums_host::<f64>(&x, &grad, &scale),
        None => [sum_of_channels(normal(&x, &scale) * grad.clone()), sum_of_channels(grad.clone())],
    };
    let (grad_gamma, grad_beta) = (cast(along.clone(), gamma_dtype), cast(plain.clone(), gamma_dtype));
    let means = means_over([along, plain], &scale);
    let factor = scale.inverse.clone() * cast(gamma, wide);
    let grad_x = match kind {
        Some(HostFloat::Single) => spread_host::<f32>(x, grad, &scale, (factor, means)),
        Some(HostFloat::Double) => spread_host::<f64>(x, grad, &scale, (factor, means)),
        None => {
            let [along, plain] = means.map(a_channel);
            let rest = grad - plain - normal(&x, &scale) * along;
            rest * a_channel(factor)
        }
    };
    (cast(grad_x, dtype).reshape(shape), grad_gamma, grad_beta)
}

fn normal(x: &Tensor<3>, scale: &Scale) -> Tensor<3> {
    let centred = x.clone() - a_channel(scale.mean.clone());
    centred * a_channel(scale.inverse.clone())
}

/// Σ all g n / N and Σ all g / N; zeros for values that mean and σ do not depend on. Collective with a group.
fn means_over([along, plain]: [Tensor<1>; 2], scale: &Scale) -> [Tensor<1>; 2] {
    let channels = plain.dims()[0];
    let own = Tensor::cat(vec![along, plain], 0);
    let all = match &scale.group {
        Some(group) => group.all_reduce(own, ReduceOp::Sum).unwrap_or_else(|error| unwind(error)),
        None => own,
    };
    let means = match scale.counts {
        true => all / scale.count.clone(),
        false => all.zeros_like(),
    };
    [means.clone().slice([0..channels]), means.slice([channels..2 * channels])]
}

/// Σ own g n and Σ own g.
fn sums_host<T: Real>(x: &Tensor<3>, grad: &Tensor<3>, scale: &Scale) -> [Tensor<1>; 2] {
    let [_, channels, inner] = x.dims();
    let block = host::rows_a_task(channels * inner) * channels * inner;
    let (x, grad, device) = (View::<T>::new(x.clone()), View::<T>::new(grad.clone()), x.device());
    let [mean, inverse] = [&scale.mean, &scale.inverse].map(|x| View::<T>::new(x.clone()));
    let mut partials = vec![T::ZERO; x.slice().len().div_ceil(block) * 2 * channels];
    host::for_blocks(&mut partials, 2 * channels, |index, partial| {
        let range = index * block..((index + 1) * block).min(x.slice().len());
        let (x, grad) = (&x.slice()[range.clone()], &grad.slice()[range]);
        add_sums(x, grad, inner, [mean.slice(), inverse.slice()], partial);
    });
    let mut along = host::sum_blocks(&partials, 2 * channels);
    let plain = along.split_off(channels);
    [along, plain].map(|sums| host::tensor(sums, [channels], &device))
}

#[multiversion(targets = "simd")]
fn add_sums<T: Real>(x: &[T], grad: &[T], inner: usize, [mean, inverse]: [&[T]; 2], partial: &mut [T]) {
    let channels = mean.len();
    let (along, plain) = partial.split_at_mut(channels);
    for (index, (x, grad)) in x.chunks_exact(inner).zip(grad.chunks_exact(inner)).enumerate() {
        let channel = index % channels;
        let mean = mean[channel];
        along[channel] += sum_of(x, grad, |x, g| (x - mean) * g) * inverse[channel];
        plain[channel] += sum_of(grad, grad, |g, _| g);
    }
}

/// ∂x, from γ / σ and the means of g n and of g.
fn spread_host<T: Real>(
    x: Tensor<3>,
    grad: Tensor<3>,
    scale: &Scale,
    (factor, [along, plain]): (Tensor<1>, [Tensor<1>; 2]),
) -> Tensor<3> {
    let device = x.device();
    let [_, channels, inner] = x.dims();
    let block = host::rows_a_task(channels * inner) * channels * inner;
    // n · mean(g n) = (x − mean) · (mean(g n) / σ)
    let slope = along * scale.inverse.clone();
    let [mean, slope, plain, factor] = [scale.mean.clone(), slope, plain, factor].map(View::<T>::new);
    let x = View::<T>::new(x);
    let mut grad = Owned::<T>::take(grad);
    host::for_blocks(grad.slice_mut(), block, |index, grad| {
        let first = index * block;
        let x = &x.slice()[first..first + grad.len()];
        spread(x, grad, inner, [mean.slice(), slope.slice(), plain.slice(), factor.slice()]);
    });
    grad.into_tensor(&device)
}

#[multiversion(targets = "simd")]
fn spread<T: Real>(x: &[T], grad: &mut [T], inner: usize, [mean, slope, plain, factor]: [&[T]; 4]) {
    for (index, (x, grad)) in x.chunks_exact(inner).zip(grad.chunks_exact_mut(inner)).enumerate() {
        let channel = index % mean.len();
        let (mean, slope, plain, factor) = (mean[channel], slope[channel], plain[channel], factor[channel]);
        grad.iter_mut().zip(x).for_each(|(g, x)| *g = (*g - plain - (*x - mean) * slope) * factor);
    }
}
