//! Loops over tensors that lie in host memory: the fast path of the fused layers.
//!
//! Burn runs a softmax or a norm as five to ten passes over memory, and as many nodes of the graph. On Flex a
//! tensor *is* host memory, so a layer may run the same formula as one pass over its rows. Every other backend
//! takes the layer's second path, in tensor operations; the tests compare both.
//!
//! The order of additions depends on the sizes alone: sixteen lanes along a row, blocks of rows of a fixed size.
//! It does not depend on the number of threads, nor on the vector width of the processor.

mod batched;
pub(crate) mod product;

pub(crate) use batched::matmul;

use core::cell::Cell;
use core::marker::PhantomData;
use core::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use burn::backend::{DispatchDevice, Flex, tensor::FloatTensor};
use burn::tensor::{DType, Device, Element, Tensor, TensorData};
use rayon::prelude::*;

use self::product::Matrix;

/// The element types of the fast path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum HostFloat {
    Single,
    Double,
}

/// Whether what lies on a device without autodiff lies in host memory.
pub(crate) fn is_host(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Flex(_))
}

/// How the elements of a tensor, or of what it tracks, can be looped over; `None` when it must be left to its backend.
pub(crate) fn host_float<const D: usize>(x: &Tensor<D>) -> Option<HostFloat> {
    if !is_host(&x.device().without_autodiff()) {
        return None;
    }
    match x.dtype() {
        DType::F32 => Some(HostFloat::Single),
        DType::F64 => Some(HostFloat::Double),
        _ => None,
    }
}

/// A float of the fast path.
pub(crate) trait Real:
    Element
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;

    fn of(x: f64) -> Self;
    fn wide(self) -> f64;
    fn exp(self) -> Self;
    fn erf(self) -> Self;
    fn sqrt(self) -> Self;
    fn magnitude(self) -> Self;
    fn is_dropped(self) -> bool;
    fn slice(tensor: &FloatTensor<Flex>) -> Option<&[Self]>;
    fn storage(tensor: &FloatTensor<Flex>) -> &[Self];

    /// Calls `f` with so many elements of this thread, which are kept for the next call; their values are those of another.
    fn with_scratch<R>(length: usize, f: impl FnOnce(&mut [Self]) -> R) -> R;
}

macro_rules! real {
    ($float:ty, $exp:path, $erf:path) => {
        impl Real for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = <$float>::NEG_INFINITY;

            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $float
            }
            #[inline(always)]
            fn wide(self) -> f64 {
                self.into()
            }
            #[inline(always)]
            fn exp(self) -> Self {
                $exp(self)
            }
            #[inline(always)]
            fn erf(self) -> Self {
                $erf(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$float>::sqrt(self)
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn is_dropped(self) -> bool {
                self.is_sign_negative()
            }
            fn slice(tensor: &FloatTensor<Flex>) -> Option<&[Self]> {
                tensor.as_slice()
            }
            fn storage(tensor: &FloatTensor<Flex>) -> &[Self] {
                tensor.storage()
            }
            fn with_scratch<R>(length: usize, f: impl FnOnce(&mut [Self]) -> R) -> R {
                thread_local! {
                    static SCRATCH: Cell<Vec<$float>> = const { Cell::new(Vec::new()) };
                }
                // Taken, as a task that waits may run another one, which then has its own.
                let mut scratch = SCRATCH.take();
                if scratch.len() < length {
                    scratch.resize(length, 0.0);
                }
                let result = f(&mut scratch[..length]);
                SCRATCH.set(scratch);
                result
            }
        }
    };
}
real!(f32, exp_f32, erf_f32);
real!(f64, f64::exp, libm::erf);

/// `e^x` without a branch or a call, so that a loop over it is vectorised.
///
/// The scheme and the coefficients are those of Cephes' `expf`; the relative error is below 1e-7. Below -87 the
/// result, smaller than the smallest normal number, is zero; above 88 it stays finite.
#[inline(always)]
#[allow(clippy::excessive_precision)] // as published
fn exp_f32(x: f32) -> f32 {
    // Adding 1.5 · 2^23 leaves the nearest integer in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    let c = if x > 88.0 { 88.0 } else { x };
    let shifted = c * core::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = c - n * 0.693_359_375 + n * 2.121_944_4e-4;
    let mut p = 1.987_569_150_0e-4;
    p = p * r + 1.398_199_950_7e-3;
    p = p * r + 8.333_451_907_3e-3;
    p = p * r + 4.166_579_589_4e-2;
    p = p * r + 1.666_666_545_9e-1;
    p = p * r + 5.000_000_120_1e-1;
    p = p * r * r + r + 1.0;
    let y = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    if x < -87.0 { 0.0 } else { y }
}

/// The error function without a branch or a call; the error is below 2e-7.
///
/// Inside [-1, 1] a rational function with the coefficients of Eigen's `generic_fast_erf_float`, outside it `1 - erfc |x|` with
/// those of `erfcc` in Press et al., Numerical Recipes, section 6.2: each is the better one there.
#[inline(always)]
#[allow(clippy::excessive_precision)] // as published
fn erf_f32(x: f32) -> f32 {
    let s = if x * x > 1.0 { 1.0 } else { x * x };
    let mut p = -2.726_142_258_013_06e-10;
    p = p * s + 2.770_681_424_959_02e-08;
    p = p * s - 2.101_024_020_825_08e-06;
    p = p * s - 5.692_506_394_623_46e-05;
    p = p * s - 7.349_906_303_268_55e-04;
    p = p * s - 2.954_599_808_540_25e-03;
    p = p * s - 1.609_603_332_624_15e-02;
    let mut q = -1.456_607_184_649_96e-05;
    q = q * s - 2.133_740_552_789_05e-04;
    q = q * s - 1.682_826_974_382_03e-03;
    q = q * s - 7.373_329_167_204_68e-03;
    q = q * s - 1.426_473_905_141_89e-02;
    let inside = x * p / q;
    let z = x.abs();
    let t = 1.0 / (1.0 + 0.5 * z);
    let mut r = 0.170_872_77;
    r = r * t - 0.822_152_23;
    r = r * t + 1.488_515_87;
    r = r * t - 1.135_203_98;
    r = r * t + 0.278_868_07;
    r = r * t - 0.186_288_06;
    r = r * t + 0.096_784_18;
    r = r * t + 0.374_091_96;
    r = r * t + 1.000_023_68;
    r = r * t - 1.265_512_23;
    let outside = (1.0 - t * exp_f32(r - z * z)).copysign(x);
    if z > 1.0 { outside } else { inside }
}

/// Lanes along which a row is summed.
pub(crate) const LANES: usize = 16;

/// Σ f(a, b) along two rows of one length.
#[inline(always)]
pub(crate) fn sum_of<T: Real>(a: &[T], b: &[T], f: impl Fn(T, T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let (a_wide, b_wide) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_wide.remainder(), b_wide.remainder());
    for (a, b) in a_wide.zip(b_wide) {
        for lane in 0..LANES {
            lanes[lane] += f(a[lane], b[lane]);
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[lane] += f(*a, *b);
    }
    fold(lanes)
}

/// Replaces every `x` of a row by `f(x)` and returns Σ f(x).
#[inline(always)]
pub(crate) fn map_sum<T: Real>(row: &mut [T], f: impl Fn(T) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let mut wide = row.chunks_exact_mut(LANES);
    for chunk in &mut wide {
        for lane in 0..LANES {
            chunk[lane] = f(chunk[lane]);
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, x) in wide.into_remainder().iter_mut().enumerate() {
        *x = f(*x);
        lanes[lane] += *x;
    }
    fold(lanes)
}

#[inline(always)]
fn fold<T: Real>(lanes: [T; LANES]) -> T {
    lanes.into_iter().fold(T::ZERO, T::add)
}

/// The largest element of a row that is a number; -∞ when there is none.
#[inline(always)]
pub(crate) fn max_of<T: Real>(row: &[T]) -> T {
    let greater = |a: T, b: T| if b > a { b } else { a };
    let mut lanes = [T::NEG_INFINITY; LANES];
    let wide = row.chunks_exact(LANES);
    let rest = wide.remainder();
    for chunk in wide {
        for lane in 0..LANES {
            lanes[lane] = greater(lanes[lane], chunk[lane]);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(T::NEG_INFINITY, greater)
}

/// A tensor's elements to read, in row-major order. Nothing is copied if they already lie so.
pub(crate) struct View<T>(FloatTensor<Flex>, PhantomData<T>);

impl<T: Real> View<T> {
    pub(crate) fn new<const D: usize>(x: Tensor<D>) -> Self {
        let tensor = x.try_into_primitive::<Flex>().expect("asked `host_float` before");
        let tensor = if T::slice(&tensor).is_some() { tensor } else { tensor.to_contiguous() };
        Self(tensor, PhantomData)
    }

    pub(crate) fn slice(&self) -> &[T] {
        T::slice(&self.0).expect("contiguous and of the asked type since `new`")
    }

    /// Of a matrix whose rows or columns may lie as they do: nothing is copied if either are contiguous.
    pub(crate) fn of_matrix(x: Tensor<2>) -> Self {
        let tensor = x.try_into_primitive::<Flex>().expect("asked `host_float` before");
        let tensor = if strides_of_matrix(&tensor).is_some() { tensor } else { tensor.to_contiguous() };
        Self(tensor, PhantomData)
    }

    /// What [`of_matrix`](Self::of_matrix) has taken.
    pub(crate) fn matrix(&self) -> Matrix<'_, T> {
        let (sizes, strides) = strides_of_matrix(&self.0).expect("seen by `of_matrix`");
        Matrix::strided(&T::storage(&self.0)[self.0.layout().start_offset()..], sizes, strides)
    }
}

/// Sizes and strides of the matrices that are a tensor's last two dims, if their rows or columns are contiguous.
fn strides_of_matrix(tensor: &FloatTensor<Flex>) -> Option<([usize; 2], [usize; 2])> {
    let layout = tensor.layout();
    let first = layout.num_dims() - 2;
    let sizes: [usize; 2] = core::array::from_fn(|dim| layout.shape()[first + dim]);
    let [row, column] = core::array::from_fn(|dim| usize::try_from(layout.strides()[first + dim]).ok());
    let strides = [row?, column?];
    let is_in_order = strides[1] == 1 && strides[0] >= sizes[1];
    let is_transposed = strides[0] == 1 && strides[1] >= sizes[0];
    (is_in_order || is_transposed).then_some((sizes, strides))
}

/// A tensor's elements to overwrite, in row-major order. Nothing is copied if no one else holds them.
pub(crate) struct Owned<T>(TensorData, PhantomData<T>);

impl<T: Real> Owned<T> {
    pub(crate) fn take<const D: usize>(x: Tensor<D>) -> Self {
        Self(x.into_data(), PhantomData)
    }

    pub(crate) fn slice_mut(&mut self) -> &mut [T] {
        self.0.as_mut_slice().expect("asked `host_float` before")
    }

    pub(crate) fn into_tensor<const D: usize>(self, device: &Device) -> Tensor<D> {
        Tensor::from_data(self.0, (device, T::dtype()))
    }
}

/// A tensor of these elements.
pub(crate) fn tensor<T: Real, const D: usize>(values: Vec<T>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (device, T::dtype()))
}

/// Rows of `length` elements that one task handles: enough work to pay for the task.
pub(crate) fn rows_a_task(length: usize) -> usize {
    const TASK: usize = 1 << 14;
    (TASK / length.max(1)).max(1)
}

/// Calls `f(block number, block)` for every block of `size` elements, on the threads of the current pool.
pub(crate) fn for_blocks<T: Send>(data: &mut [T], size: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if data.len() <= size {
        if !data.is_empty() {
            f(0, data);
        }
        return;
    }
    data.par_chunks_mut(size).enumerate().for_each(|(index, block)| f(index, block));
}

/// [`for_blocks`] over two arrays that are cut into the same number of blocks.
pub(crate) fn for_blocks2<T: Send, U: Send>(
    (a, a_size): (&mut [T], usize),
    (b, b_size): (&mut [U], usize),
    f: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    if a.len() <= a_size && b.len() <= b_size {
        if !a.is_empty() {
            f(0, a, b);
        }
        return;
    }
    let blocks = a.par_chunks_mut(a_size).zip(b.par_chunks_mut(b_size));
    blocks.enumerate().for_each(|(index, (a, b))| f(index, a, b));
}

/// Σ a b, whatever the number of threads: Flex's own sum follows the stealing of rayon from 4 Mi elements on.
pub(crate) fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    const BLOCK: usize = 1 << 14;
    let blocks = a.par_chunks(BLOCK).zip(b.par_chunks(BLOCK));
    let partials: Vec<T> = blocks.map(|(a, b)| sum_of(a, b, |a, b| a * b)).collect();
    partials.into_iter().fold(T::ZERO, T::add)
}

/// The sum of arrays of `length` elements that lie behind each other, in their order.
pub(crate) fn sum_blocks<T: Real>(partials: &[T], length: usize) -> Vec<T> {
    let mut sum = vec![T::ZERO; length];
    for partial in partials.chunks_exact(length.max(1)) {
        sum.iter_mut().zip(partial).for_each(|(sum, x)| *sum += *x);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_and_flushes_to_zero() {
        for i in 0..1_000_000 {
            let x = -86.9 + i as f32 * 1.74e-4;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp_f32(x)) - exact).abs() <= 2e-7 * exact, "e^{x}");
        }
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert!(exp_f32(1e9).is_finite());
        assert!(exp_f32(f32::NAN).is_nan());
    }

    #[test]
    fn erf_is_accurate() {
        for i in -600_000..600_000 {
            let x = i as f32 * 1e-5;
            assert!((f64::from(erf_f32(x)) - libm::erf(f64::from(x))).abs() <= 2e-7, "erf {x}");
        }
        assert!(erf_f32(f32::NAN).is_nan());
    }

    #[test]
    fn rows_are_reduced_whatever_their_length() {
        for length in [0, 1, 15, 16, 17, 100] {
            let mut row: Vec<f64> = (0..length).map(|i| (i as f64 * 0.7).sin()).collect();
            let (sum, max) = (row.iter().sum::<f64>(), row.iter().copied().fold(f64::NEG_INFINITY, f64::max));
            assert!((sum_of(&row, &row, |a, _| a) - sum).abs() < 1e-12);
            assert_eq!(max_of(&row), max);
            assert!((map_sum(&mut row, |x| 2.0 * x) - 2.0 * sum).abs() < 1e-12);
        }
        assert_eq!(max_of(&[f32::NAN, 1.0, f32::NAN]), 1.0);
    }

    #[test]
    fn a_dot_product_has_the_same_bits_on_any_number_of_threads() {
        let [a, b] =
            [0.7, 1.3].map(|step| (0..5 << 20).map(|i| (f64::from(i) * step).sin() as f32).collect::<Vec<_>>());
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| dot(&a, &b))
        };
        let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert!((f64::from(on(1)) - exact).abs() < 1e-2, "{} is not {exact}", on(1));
        for threads in [2, 3, 5] {
            assert_eq!(on(threads).to_bits(), on(1).to_bits());
        }
        assert_eq!(dot::<f64>(&[], &[]), 0.0);
    }
}
