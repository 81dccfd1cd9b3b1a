//! Reductions of numbers in memory.

use crate::half::{from_bf16, from_f16, to_bf16, to_f16};

/// How long an element of a type is.
pub fn size(element: i32) -> Option<usize> {
    [1, 1, 4, 4, 8, 8, 2, 4, 8, 2].get(element as usize).copied()
}

/// Reduces parts of the same length, in their order; none for a type or an operation that is not known.
pub fn reduce(parts: &[Vec<u8>], element: i32, op: i32) -> Option<Vec<u8>> {
    macro_rules! numbers {
        ($type:ty, $sum:expr, $product:expr) => {
            fold::<{ size_of::<$type>() }>(parts, |a, b| {
                let (a, b) = (<$type>::from_ne_bytes(a), <$type>::from_ne_bytes(b));
                let sum: fn($type, $type) -> $type = $sum;
                let product: fn($type, $type) -> $type = $product;
                // NCCL has the largest before the smallest.
                [sum(a, b), product(a, b), a.max(b), a.min(b)][op as usize].to_ne_bytes()
            })
        };
    }
    macro_rules! halves {
        ($from:ident, $to:ident) => {
            fold::<2>(parts, |a, b| {
                let (a, b) = ($from(u16::from_ne_bytes(a)), $from(u16::from_ne_bytes(b)));
                $to([a + b, a * b, a.max(b), a.min(b)][op as usize]).to_ne_bytes()
            })
        };
    }
    if !(0..4).contains(&op) {
        return None;
    }
    Some(match element {
        0 => numbers!(i8, i8::wrapping_add, i8::wrapping_mul),
        1 => numbers!(u8, u8::wrapping_add, u8::wrapping_mul),
        2 => numbers!(i32, i32::wrapping_add, i32::wrapping_mul),
        3 => numbers!(u32, u32::wrapping_add, u32::wrapping_mul),
        4 => numbers!(i64, i64::wrapping_add, i64::wrapping_mul),
        5 => numbers!(u64, u64::wrapping_add, u64::wrapping_mul),
        6 => halves!(from_f16, to_f16),
        7 => numbers!(f32, |a, b| a + b, |a, b| a * b),
        8 => numbers!(f64, |a, b| a + b, |a, b| a * b),
        9 => halves!(from_bf16, to_bf16),
        _ => return None,
    })
}

fn fold<const N: usize>(parts: &[Vec<u8>], combine: impl Fn([u8; N], [u8; N]) -> [u8; N]) -> Vec<u8> {
    let mut all = parts[0].clone();
    for part in &parts[1..] {
        for (a, b) in all.chunks_exact_mut(N).zip(part.chunks_exact(N)) {
            let (left, right) = (<[u8; N]>::try_from(&*a).unwrap(), <[u8; N]>::try_from(b).unwrap());
            a.copy_from_slice(&combine(left, right));
        }
    }
    all
}
