//! The element types, and arithmetic on slices of them.

use burn::tensor::{Bytes, bf16, f16};

use crate::operation::ReduceOp;

/// A plain number.
///
/// # Safety
///
/// The type has no padding and every bit pattern is a value of it.
pub(super) unsafe trait Number: Copy + Send + Sync + 'static {
    fn sum(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn into_bytes(numbers: Vec<Self>) -> Bytes;

    fn as_bytes(numbers: &[Self]) -> &[u8] {
        // SAFETY: a number has no padding; the slice is that long in bytes.
        unsafe { core::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
    }
}

macro_rules! number {
    ($($type:ty: $sum:expr, $max:expr;)+) => {$(
        // SAFETY: a primitive number, or one in a transparent wrapper around an integer.
        unsafe impl Number for $type {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                $sum(self, other)
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                $max(self, other)
            }

            fn into_bytes(numbers: Vec<Self>) -> Bytes {
                Bytes::from_elems(numbers)
            }
        }
    )+};
}

/// The larger; a NaN wins, wherever it stands.
macro_rules! float_max {
    () => {
        |a: Self, b: Self| if a > b || a.is_nan() { a } else { b }
    };
}

number! {
    f64: |a: Self, b: Self| a + b, float_max!();
    f32: |a: Self, b: Self| a + b, float_max!();
    f16: |a: Self, b: Self| a + b, float_max!();
    bf16: |a: Self, b: Self| a + b, float_max!();
    i64: Self::wrapping_add, Ord::max;
    i32: Self::wrapping_add, Ord::max;
    i16: Self::wrapping_add, Ord::max;
    i8: Self::wrapping_add, Ord::max;
    u64: Self::wrapping_add, Ord::max;
    u32: Self::wrapping_add, Ord::max;
    u16: Self::wrapping_add, Ord::max;
    u8: Self::wrapping_add, Ord::max;
}

/// Runs `$body` with `$number` standing for the type of a `DType`; evaluates to a `Result`.
macro_rules! with_number {
    ($dtype:expr, $number:ident => $body:expr) => {
        with_number!(@ $dtype, $number => $body; F64 f64, F32 f32, F16 burn::tensor::f16, BF16 burn::tensor::bf16,
            I64 i64, I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16, U8 u8)
    };
    (@ $dtype:expr, $number:ident => $body:expr; $($name:ident $type:ty),+) => {
        match $dtype {
            $(burn::tensor::DType::$name => {
                type $number = $type;
                Ok($body)
            })+
            other => Err($crate::error::Error::invalid(format!(
                "a collective of {}, which is not a plain number; cast() the tensor to a float or an int type",
                other.name()
            ))),
        }
    };
}
pub(super) use with_number;

/// `to[i] = op(to[i], from[i])`.
pub(super) fn accumulate<N: Number>(to: &mut [N], from: &[N], op: ReduceOp) {
    match op {
        ReduceOp::Sum => to.iter_mut().zip(from).for_each(|(to, from)| *to = to.sum(*from)),
        ReduceOp::Max => to.iter_mut().zip(from).for_each(|(to, from)| *to = to.max(*from)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_numbers_and_a_nan_is_the_nan() {
        for (a, b) in [(1.0, f64::NAN), (f64::NAN, 1.0)] {
            assert!(Number::max(a, b).is_nan());
            assert!(Number::max(a as f32, b as f32).is_nan());
        }
        assert_eq!(Number::max(-1.0_f32, -2.0), -1.0);
        assert_eq!(Number::max(-1_i64, -2), -1);
    }
}
