//! The floats that are looped over.

use core::cell::RefCell;
use core::mem::MaybeUninit;
use core::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use burn::tensor::Tensor;

use super::kernel::{ProductElement, ProductType, product_type};
use super::unwritten::Scratch;

/// The element types of the fast path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum HostFloat {
    Single,
    Double,
}

/// How the elements of a tensor, or of what it tracks, can be looped over; `None` when it must be left to its backend.
pub(crate) fn host_float<const D: usize>(x: &Tensor<D>) -> Option<HostFloat> {
    match product_type(x)? {
        ProductType::F32 => Some(HostFloat::Single),
        ProductType::F64 => Some(HostFloat::Double),
        ProductType::F16 | ProductType::Bf16 => None,
    }
}

/// A float of the fast path.
pub(crate) trait Real:
    ProductElement
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
    const INFINITY: Self;
    const NEG_INFINITY: Self;

    fn of(x: f64) -> Self;
    fn wide(self) -> f64;
    fn exp(self) -> Self;
    fn erf(self) -> Self;
    fn tanh(self) -> Self;
    fn sqrt(self) -> Self;
    fn magnitude(self) -> Self;
    fn is_nan(self) -> bool;

    /// 1 / (1 + e^-x)
    #[inline(always)]
    fn sigmoid(self) -> Self {
        self.sigmoid_and_rest().0
    }

    /// 1 / (1 + e^-x), and what is missing to 1, each exact where it is small.
    #[inline(always)]
    fn sigmoid_and_rest(self) -> (Self, Self) {
        let power = (-self.magnitude()).exp();
        let large = Self::ONE / (Self::ONE + power);
        let small = power * large;
        if self < Self::ZERO { (small, large) } else { (large, small) }
    }

    /// Calls `f` with memory of so many elements, which are not written yet. A thread keeps it for its next call, if they
    /// are not too many.
    fn with_scratch<R>(length: usize, f: impl FnOnce(&mut [MaybeUninit<Self>]) -> R) -> R;
}

macro_rules! real {
    ($float:ty, $exp:path, $erf:path, $tanh:path) => {
        impl Real for $float {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const INFINITY: Self = <$float>::INFINITY;
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
            fn tanh(self) -> Self {
                $tanh(self)
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
            fn is_nan(self) -> bool {
                <$float>::is_nan(self)
            }
            fn with_scratch<R>(length: usize, f: impl FnOnce(&mut [MaybeUninit<Self>]) -> R) -> R {
                thread_local! {
                    static SCRATCH: RefCell<Scratch<$float>> = const { RefCell::new(Scratch::new()) };
                }
                // A task that waits may run another one, which takes the next.
                let mut memory = SCRATCH.with_borrow_mut(|scratch| scratch.take(length));
                let result = f(&mut memory.spare_capacity_mut()[..length]);
                SCRATCH.with_borrow_mut(|scratch| scratch.give_back(memory));
                result
            }
        }
    };
}
real!(f32, exp_f32, erf_f32, tanh_f32);
real!(f64, f64::exp, libm::erf, f64::tanh);

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
    let y = if x.is_nan() { x } else { y };
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

/// The hyperbolic tangent without a branch or a call: `1 - 2 / (e^2x + 1)`, near 0, where that loses digits, Taylor's polynomial.
#[inline(always)]
fn tanh_f32(x: f32) -> f32 {
    let s = if x * x > 0.0625 { 0.0625 } else { x * x };
    let mut p = 62.0 / 2835.0;
    p = p * s - 17.0 / 315.0;
    p = p * s + 2.0 / 15.0;
    p = p * s - 1.0 / 3.0;
    let inside = x + x * s * p;
    let outside = 1.0 - 2.0 / (exp_f32(2.0 * x) + 1.0);
    if x.abs() > 0.25 { outside } else { inside }
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
    fn tanh_is_accurate() {
        for i in -1_000_000..1_000_000 {
            let x = i as f32 * 1e-5;
            let exact = f64::from(x).tanh();
            assert!((f64::from(tanh_f32(x)) - exact).abs() <= 5e-7 * exact.abs(), "tanh {x}");
        }
        assert_eq!([tanh_f32(-1e9), tanh_f32(1e9)], [-1.0, 1.0]);
        assert!(tanh_f32(f32::NAN).is_nan());
    }

    #[test]
    fn erf_is_accurate() {
        for i in -600_000..600_000 {
            let x = i as f32 * 1e-5;
            assert!((f64::from(erf_f32(x)) - libm::erf(f64::from(x))).abs() <= 2e-7, "erf {x}");
        }
        assert!(erf_f32(f32::NAN).is_nan());
    }
}
