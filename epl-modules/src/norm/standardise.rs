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

use super::statistics::{a_channel, is_narrow, repeated, sum_of_channels};
use crate::host::{self, HostFloat, Owned, Real, View, host_float, sum_of};

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

/// In f32 at least; the result returns to the type of x.
fn forward<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, beta: Tensor<1>, scale: &Scale) -> Tensor<D> {
    let (shape, dtype) = (x.dims(), x.dtype());
    let x = flat(widen(x));
    let (factor, beta) = (scale.inverse.clone() * cast(gamma, x.dtype()), cast(beta, x.dtype()));
    let y = match host_float(&x) {
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
    let block = (host::rows_a_task(channels * inner) * channels * inner).max(1);
    let ([mean, factor, beta], inner) = by_run([mean, factor, beta].map(|x| View::<T>::new(x.clone())), inner);
    let x = View::<T>::new(x);
    let y = host::new_blocks(x.slice().len(), block, |index, y| {
        let first = index * block;
        let x = &x.slice()[first..first + y.len()];
        shift_scale(x, y, inner, [&mean, &factor, &beta]);
    });
    host::tensor(y, shape, &device)
}

/// y = (x − mean) · factor + beta. Subtracted first: a mean that is large beside σ would swallow the digits of x.
#[multiversion(targets = "simd")]
fn shift_scale<T: Real>(x: &[T], y: &mut [T], inner: usize, [mean, factor, beta]: [&[T]; 3]) {
    if inner == 1 {
        for (x, y) in x.chunks_exact(mean.len()).zip(y.chunks_exact_mut(mean.len())) {
            let numbers = mean.iter().zip(factor).zip(beta);
            x.iter()
                .zip(y)
                .zip(numbers)
                .for_each(|((x, y), ((mean, factor), beta))| *y = (*x - *mean) * *factor + *beta);
        }
        return;
    }
    let runs = x.chunks_exact(inner).zip(y.chunks_exact_mut(inner));
    for (index, (x, y)) in runs.enumerate() {
        let channel = index % mean.len();
        let (mean, factor, beta) = (mean[channel], factor[channel], beta[channel]);
        x.iter().zip(y).for_each(|(x, y)| *y = (*x - mean) * factor + beta);
    }
}

/// Each channel's number repeated for each element of its run, where runs are short, and 1: as if each element were a channel; else
/// the numbers and the length of a run as they are.
fn by_run<T: Real, const N: usize>(numbers: [View<T>; N], inner: usize) -> ([Vec<T>; N], usize) {
    let (times, inner) = if is_narrow(inner) { (inner, 1) } else { (1, inner) };
    (numbers.map(|view| repeated(view.slice(), times)), inner)
}

type Grads<const D: usize> = (Tensor<D>, Tensor<1>, Tensor<1>);

/// As forward; each gradient returns to the type of its input.
fn backward<const D: usize>(saved: Saved<D>, grad: Tensor<D>) -> Grads<D> {
    let Saved { x, gamma, scale } = saved;
    let (shape, dtype, gamma_dtype) = (x.dims(), x.dtype(), gamma.dtype());
    let x = flat(widen(x));
    let (wide, grad) = (x.dtype(), cast(flat(grad), x.dtype()));
    let kind = host_float(&x);
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
    let block = (host::rows_a_task(channels * inner) * channels * inner).max(1);
    let (x, grad, device) = (View::<T>::new(x.clone()), View::<T>::new(grad.clone()), x.device());
    let inverse = View::<T>::new(scale.inverse.clone());
    let ([mean], _) = by_run([View::<T>::new(scale.mean.clone())], inner);
    let mut partials = vec![T::ZERO; x.slice().len().div_ceil(block) * 2 * channels];
    host::for_blocks(&mut partials, 2 * channels, |index, partial| {
        let range = index * block..((index + 1) * block).min(x.slice().len());
        let (x, grad) = (&x.slice()[range.clone()], &grad.slice()[range]);
        match is_narrow(inner) {
            true => add_narrow_sums(x, grad, inner, [&mean, inverse.slice()], partial),
            false => add_sums(x, grad, inner, [&mean, inverse.slice()], partial),
        }
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

/// Rows that are added up before their sum is added to that of others: a longer sum in f32 would lose digits.
const ROWS_OF_A_SUM: usize = 64;

/// [`add_sums`] along whole rows, of each element's mean.
#[multiversion(targets = "simd")]
fn add_narrow_sums<T: Real>(x: &[T], grad: &[T], inner: usize, [means, inverse]: [&[T]; 2], partial: &mut [T]) {
    let width = means.len();
    let (along, plain) = partial.split_at_mut(inverse.len());
    let (mut products, mut sums) = (vec![T::ZERO; width], vec![T::ZERO; width]);
    let sum_of_run = |run: &[T]| run.iter().fold(T::ZERO, |sum, x| sum + *x);
    for (x, grad) in x.chunks(ROWS_OF_A_SUM * width).zip(grad.chunks(ROWS_OF_A_SUM * width)) {
        products.fill(T::ZERO);
        sums.fill(T::ZERO);
        for (x, grad) in x.chunks_exact(width).zip(grad.chunks_exact(width)) {
            let all = products.iter_mut().zip(&mut sums).zip(x.iter().zip(grad).zip(means));
            all.for_each(|((product, sum), ((x, g), mean))| {
                *product += (*x - *mean) * *g;
                *sum += *g;
            });
        }
        for (channel, (products, sums)) in products.chunks_exact(inner).zip(sums.chunks_exact(inner)).enumerate() {
            along[channel] += sum_of_run(products) * inverse[channel];
            plain[channel] += sum_of_run(sums);
        }
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
    let block = (host::rows_a_task(channels * inner) * channels * inner).max(1);
    // n · mean(g n) = (x − mean) · (mean(g n) / σ)
    let slope = along * scale.inverse.clone();
    let numbers = [scale.mean.clone(), slope, plain, factor].map(View::<T>::new);
    let ([mean, slope, plain, factor], inner) = by_run(numbers, inner);
    let x = View::<T>::new(x);
    let mut grad = Owned::<T>::take(grad);
    host::for_blocks(grad.slice_mut(), block, |index, grad| {
        let first = index * block;
        let x = &x.slice()[first..first + grad.len()];
        spread(x, grad, inner, [&mean, &slope, &plain, &factor]);
    });
    grad.into_tensor(&device)
}

#[multiversion(targets = "simd")]
fn spread<T: Real>(x: &[T], grad: &mut [T], inner: usize, [mean, slope, plain, factor]: [&[T]; 4]) {
    if inner == 1 {
        for (x, grad) in x.chunks_exact(mean.len()).zip(grad.chunks_exact_mut(mean.len())) {
            let numbers = mean.iter().zip(slope).zip(plain.iter().zip(factor));
            grad.iter_mut().zip(x).zip(numbers).for_each(|((g, x), ((mean, slope), (plain, factor)))| {
                *g = (*g - *plain - (*x - *mean) * *slope) * *factor;
            });
        }
        return;
    }
    for (index, (x, grad)) in x.chunks_exact(inner).zip(grad.chunks_exact_mut(inner)).enumerate() {
        let channel = index % mean.len();
        let (mean, slope, plain, factor) = (mean[channel], slope[channel], plain[channel], factor[channel]);
        grad.iter_mut().zip(x).for_each(|(g, x)| *g = (*g - plain - (*x - mean) * slope) * factor);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, Distribution, TensorData};

    use super::super::statistics::Moments;
    use super::*;

    /// The same number in f32, through which a scalar may go.
    const EPSILON: f64 = 1.0 / 131_072.0;

    /// The output, and the gradients of x, γ and β, element by element.
    fn reference(shape: [usize; 3], [x, gamma, beta, grad]: [&[f64]; 4]) -> [Vec<f64>; 4] {
        let [rows, channels, inner] = shape;
        let [mut y, mut of_x] = [0, 0].map(|_| vec![0.0; x.len()]);
        let [mut of_gamma, mut of_beta] = [0, 0].map(|_| vec![0.0; channels]);
        let count = (rows * inner) as f64;
        for channel in 0..channels {
            let own = (0..rows).flat_map(|row| (0..inner).map(move |at| (row * channels + channel) * inner + at));
            let own: Vec<usize> = own.collect();
            let mean = own.iter().map(|at| x[*at]).sum::<f64>() / count;
            let variance = own.iter().map(|at| (x[*at] - mean) * (x[*at] - mean)).sum::<f64>() / count;
            let inverse = 1.0 / (variance + EPSILON).sqrt();
            let normal = |at: usize| (x[at] - mean) * inverse;
            of_gamma[channel] = own.iter().map(|at| grad[*at] * normal(*at)).sum();
            of_beta[channel] = own.iter().map(|at| grad[*at]).sum();
            for at in own {
                y[at] = normal(at) * gamma[channel] + beta[channel];
                let rest = grad[at] - of_beta[channel] / count - normal(at) * of_gamma[channel] / count;
                of_x[at] = gamma[channel] * inverse * rest;
            }
        }
        [y, of_x, of_gamma, of_beta]
    }

    /// Runs of one element, short and long ones, of one task and of several, none.
    #[test]
    fn a_batch_and_its_gradients_are_those_of_the_formula_on_any_number_of_threads() {
        let shapes = [
            [1, 1, 1],
            [5, 3, 4],
            [700, 40, 1],
            [9, 600, 4],
            [3, 2, 63],
            [4, 3, 64],
            [6, 5, 1000],
            [0, 3, 4],
            [2, 3, 0],
        ];
        for shape in shapes {
            let (device, channels) = (Device::flex(), shape[1]);
            let draw = |count: usize| -> Vec<f64> {
                let values = Tensor::<1>::random([count], Distribution::Default, (&device, DType::F64));
                values.into_data().iter().collect()
            };
            let count = shape.iter().product();
            let [x, gamma, beta, grad] = [count, channels, channels, count].map(draw);
            let x: Vec<f64> = x.into_iter().map(|x| x + 3.0).collect();
            let of_shape = |values: &[f64]| -> Tensor<3> {
                Tensor::from_data(TensorData::new(values.to_vec(), shape), (&device, DType::F64))
            };
            let of_channels = |values: &[f64]| Tensor::<1>::from_data(values, (&device, DType::F64));
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
                pool.install(|| {
                    let Moments { count, mean, squares } = Moments::of(&of_shape(&x));
                    let (count, gamma) = (count.clamp_min(1.0), of_channels(&gamma));
                    let sigma = (squares / count.clone() + EPSILON).sqrt();
                    let scale = Scale { mean, inverse: sigma.ones_like() / sigma, count, counts: true, group: None };
                    let y = forward(of_shape(&x), gamma.clone(), of_channels(&beta), &scale);
                    let (of_x, of_gamma, of_beta) = backward(Saved { x: of_shape(&x), gamma, scale }, of_shape(&grad));
                    let all = [y.into_data(), of_x.into_data(), of_gamma.into_data(), of_beta.into_data()];
                    all.map(|data| data.iter::<f64>().collect::<Vec<_>>())
                })
            };
            let ours = run(1);
            assert_eq!(ours, run(3), "{shape:?}, bit by bit");
            for (ours, exact) in ours.iter().zip(reference(shape, [&x, &gamma, &beta, &grad])) {
                assert_eq!(ours.len(), exact.len());
                let far = epl_testing::largest(ours.iter().zip(&exact).map(|(a, b)| (a - b).abs()));
                // A rounding of the mean counts once for each value of the channel.
                assert!(far <= 1e-12 * (1 + shape[0] * shape[2]) as f64, "{shape:?}: {far:e}");
            }
        }
    }
}
