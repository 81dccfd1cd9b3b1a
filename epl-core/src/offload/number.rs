//! The element types that are computed with.

use core::ops::{Add, Div, Mul, Sub};

use burn::tensor::Element;
use bytemuck::Pod;

/// Elements of one block: what one thread works on at a time, and what a sum of squares adds up in one go. Fixed, so
/// that no result depends on threads or windows. Four arrays of it in f32 lie in the cache of a core.
pub(super) const BLOCK: usize = 1 << 14;

/// f32 or f64.
pub(crate) trait Number:
    Element + Pod + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// As Flex takes a scalar: every scalar passes through f64.
    fn of(scalar: f64) -> Self;
    fn wide(self) -> f64;
    fn root(self) -> Self;
    fn sign(self) -> Self;
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Number for $number {
            #[inline(always)]
            fn of(scalar: f64) -> Self {
                scalar as $number
            }

            #[inline(always)]
            fn wide(self) -> f64 {
                self.into()
            }

            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }

            /// 0 for ±0 and for NaN, as Flex has it.
            #[inline(always)]
            fn sign(self) -> Self {
                if self.is_nan() || self == 0.0 { 0.0 } else { (1.0 as $number).copysign(self) }
            }
        }
    )*};
}

numbers! { f32 f64 }
