//! What a norm multiplies by.

use burn::nn::Initializer;
use burn::tensor::Tensor;
use epl_core::model::precision::widen;

/// The factors of a norm whose `gamma` may be what they have beyond 1: then in f32 at least, as 16 bits would lose the digits of
/// what is small beside 1.
pub(super) fn factors(gamma: Tensor<1>, zero_centered: bool) -> Tensor<1> {
    if zero_centered { widen(gamma) + 1.0 } else { gamma }
}

/// As is asked for, or with which all factors are one.
pub(super) fn first_gamma(zero_centered: bool, asked: Option<&Initializer>) -> Initializer {
    asked.cloned().unwrap_or(if zero_centered { Initializer::Zeros } else { Initializer::Ones })
}
