//! The element types, and arithmetic on slices of them.

use core::convert::identity;
use core::iter;

use burn::tensor::{Bytes, bf16, f16};

use crate::operation::ReduceOp;

/// A plain number.
///
/// # Safety
///
/// The type has no padding and every bit pattern is a value of it.
pub(crate) unsafe trait Number: Copy + Send + Sync + 'static {
    /// What is reduced in: f32 for the 16-bit floats, which would lose a bit with every addition.
    type Wide: Copy + Default;
    /// Whether that is the type itself.
    const IS_WIDE: bool = size_of::<Self>() == size_of::<Self::Wide>();

    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    fn sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn product(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn min(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn max(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Only floats have one; a call for a mean of whole numbers is refused before it is made.
    fn divide(a: Self::Wide, count: usize) -> Self::Wide;
    fn into_bytes(numbers: Vec<Self>) -> Bytes;
    /// The other way round, if the memory is one of such numbers.
    fn from_bytes(bytes: Bytes) -> Option<Vec<Self>>;

    fn as_bytes(numbers: &[Self]) -> &[u8] {
        // SAFETY: a number has no padding; the slice is that long in bytes.
        unsafe { core::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
    }
}

macro_rules! number {
    ($($type:ty: $wide:ty, $widen:expr, $narrow:expr, $rule:ident;)+) => {$(
        // SAFETY: a primitive number, or one in a transparent wrapper around an integer.
        unsafe impl Number for $type {
            type Wide = $wide;

            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }

            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                $narrow(wide)
            }

            $rule!($wide);

            fn into_bytes(numbers: Vec<Self>) -> Bytes {
                Bytes::from_elems(numbers)
            }

            fn from_bytes(bytes: Bytes) -> Option<Vec<Self>> {
                bytes.try_into_vec().ok()
            }
        }
    )+};
}

/// Functions of two numbers.
macro_rules! rules {
    ($wide:ty; $($name:ident: |$a:ident, $b:ident| $result:expr;)+) => {$(
        #[inline(always)]
        fn $name($a: $wide, $b: $wide) -> $wide {
            $result
        }
    )+};
}

/// Of two floats, a NaN is the smallest and the largest, wherever it stands.
macro_rules! float_rules {
    ($wide:ty) => {
        rules! { $wide; sum: |a, b| a + b; product: |a, b| a * b;
        min: |a, b| if a < b || a.is_nan() { a } else { b };
        max: |a, b| if a > b || a.is_nan() { a } else { b }; }

        #[inline(always)]
        fn divide(a: $wide, count: usize) -> $wide {
            a / count as $wide
        }
    };
}

/// Whole numbers wrap around, as those of a backend do.
macro_rules! whole_rules {
    ($wide:ty) => {
        rules! { $wide; sum: |a, b| a.wrapping_add(b); product: |a, b| a.wrapping_mul(b);
        min: |a, b| Ord::min(a, b); max: |a, b| Ord::max(a, b); }

        fn divide(a: $wide, _count: usize) -> $wide {
            a
        }
    };
}

number! {
    f64: f64, identity, identity, float_rules;
    f32: f32, identity, identity, float_rules;
    f16: f32, f16::to_f32, f16::from_f32, float_rules;
    bf16: f32, bf16::to_f32, bf16::from_f32, float_rules;
    i64: i64, identity, identity, whole_rules;
    i32: i32, identity, identity, whole_rules;
    i16: i16, identity, identity, whole_rules;
    i8: i8, identity, identity, whole_rules;
    u64: u64, identity, identity, whole_rules;
    u32: u32, identity, identity, whole_rules;
    u16: u16, identity, identity, whole_rules;
    u8: u8, identity, identity, whole_rules;
}

/// Runs `$body` with `$number` standing for the type of a `DType`; evaluates to a `Result`.
macro_rules! with_number {
    ($dtype:expr, $number:ident => $body:expr) => {
        with_number!(@ $dtype, $number => $body; F64 = f64, F32 = f32, F16 = burn::tensor::f16,
            BF16 = burn::tensor::bf16, I64 = i64, I32 = i32, I16 = i16, I8 = i8, U64 = u64, U32 = u32, U16 = u16,
            U8 = u8, Bool(burn::tensor::BoolStore::Native | burn::tensor::BoolStore::U8) = u8,
            Bool(burn::tensor::BoolStore::U32) = u32)
    };
    (@ $dtype:expr, $number:ident => $body:expr; $($name:ident $(($store:pat))? = $type:ty),+) => {
        match $dtype {
            $(burn::tensor::DType::$name $(($store))? => {
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
pub(crate) use with_number;

/// Numbers that are widened at a time: a stack's worth.
const BLOCK: usize = 256;

/// Reduces numbers into `to`, which lie between those of the members `before` and `after`; in the order of the
/// members, rounded once, at the end.
pub(crate) fn reduce<'a, N: Number>(
    to: &mut [N],
    before: impl ExactSizeIterator<Item = &'a [N]> + Clone,
    after: impl ExactSizeIterator<Item = &'a [N]> + Clone,
    op: ReduceOp,
) {
    let members = before.len() + 1 + after.len();
    match op {
        ReduceOp::Sum => blocks(to, before, after, N::sum, |wide| wide),
        ReduceOp::Mean => blocks(to, before, after, N::sum, |wide| N::divide(wide, members)),
        ReduceOp::Product => blocks(to, before, after, N::product, |wide| wide),
        ReduceOp::Min => blocks(to, before, after, N::min, |wide| wide),
        ReduceOp::Max => blocks(to, before, after, N::max, |wide| wide),
    }
}

fn blocks<'a, N: Number>(
    to: &mut [N],
    before: impl ExactSizeIterator<Item = &'a [N]> + Clone,
    after: impl ExactSizeIterator<Item = &'a [N]> + Clone,
    combine: impl Fn(N::Wide, N::Wide) -> N::Wide,
    finish: impl Fn(N::Wide) -> N::Wide,
) {
    if N::IS_WIDE && before.len() == 0 {
        // Nothing is lost on the way, so no other place is needed.
        for other in after {
            to.iter_mut().zip(other).for_each(|(own, other)| *own = N::narrow(combine(own.widen(), other.widen())));
        }
        return to.iter_mut().for_each(|own| *own = N::narrow(finish(own.widen())));
    }
    let mut wide = [N::Wide::default(); BLOCK];
    for (number, block) in to.chunks_mut(BLOCK).enumerate() {
        let wide = &mut wide[..block.len()];
        let place = number * BLOCK..number * BLOCK + block.len();
        let mut parts = before
            .clone()
            .map(|numbers| &numbers[place.clone()])
            .chain(iter::once(&*block))
            .chain(after.clone().map(|numbers| &numbers[place.clone()]));
        if let Some(first) = parts.next() {
            wide.iter_mut().zip(first).for_each(|(wide, number)| *wide = number.widen());
        }
        for part in parts {
            wide.iter_mut().zip(part).for_each(|(wide, number)| *wide = combine(*wide, number.widen()));
        }
        block.iter_mut().zip(&*wide).for_each(|(own, wide)| *own = N::narrow(finish(*wide)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced<N: Number>(parts: &[&[N]], op: ReduceOp) -> Vec<N> {
        let results = (0..parts.len()).map(|own| {
            let mut all = parts[own].to_vec();
            reduce(&mut all, parts[..own].iter().copied(), parts[own + 1..].iter().copied(), op);
            all
        });
        let results: Vec<Vec<N>> = results.collect();
        let bits = |numbers: &[N]| N::as_bytes(numbers).to_vec();
        assert!(results.iter().all(|result| bits(result) == bits(&results[0])), "whoever keeps the result");
        results[0].clone()
    }

    #[test]
    fn the_smallest_and_the_largest_of_numbers_and_a_nan_are_the_nan() {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            for parts in [[[1.0], [f64::NAN]], [[f64::NAN], [1.0]]] {
                assert!(reduced(&parts.each_ref().map(<[f64; 1]>::as_slice), op)[0].is_nan());
            }
        }
        assert_eq!(reduced::<f32>(&[&[-1.0], &[-2.0]], ReduceOp::Max), [-1.0]);
        assert_eq!(reduced::<i64>(&[&[-1], &[-2]], ReduceOp::Min), [-2]);
    }

    /// 2048 + 1 is 2048 in f16: adding one after the other would stay there.
    #[test]
    fn sixteen_bits_are_summed_in_more() {
        let (large, one) = ([f16::from_f32(2048.0)], [f16::from_f32(1.0)]);
        assert_eq!(reduced::<f16>(&[&large, &one, &one], ReduceOp::Sum), [f16::from_f32(2050.0)]);
        let (large, one) = ([bf16::from_f32(256.0)], [bf16::from_f32(1.0)]);
        assert_eq!(reduced::<bf16>(&[&large, &one, &one], ReduceOp::Sum), [bf16::from_f32(258.0)]);
        let most = [f16::MAX; 1];
        assert_eq!(reduced::<f16>(&[&most, &most], ReduceOp::Mean), [f16::MAX]);
    }

    #[test]
    fn every_block_is_reduced() {
        let part = |factor: i64| (0..3 * BLOCK as i64 + 7).map(|index| index * factor).collect::<Vec<_>>();
        let (a, b, c) = (part(1), part(2), part(3));
        assert_eq!(reduced::<i64>(&[&a, &b, &c], ReduceOp::Sum), part(6));
        assert_eq!(reduced::<i64>(&[&a, &b], ReduceOp::Product)[600], 600 * 1200);
    }
}
