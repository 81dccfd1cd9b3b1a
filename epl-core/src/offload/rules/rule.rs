//! What every rule says, and the arithmetic that several share.

use crate::offload::number::Number;

/// An element-wise update with `N` numbers of state.
pub(in super::super) trait Rule<E: Number, const N: usize> {
    /// What is the same for all elements of a parameter in a step.
    type Constants: Copy + Send + Sync;

    /// `time` is one in a parameter's first step.
    fn constants(&self, rate: f64, time: usize) -> Self::Constants;

    /// The parameter and its state after the step. In the first step the state is not there yet: Burn leaves its terms
    /// out, which is not the same as zero (the sum of 0 and -0 is 0).
    fn element<const FIRST: bool>(constants: &Self::Constants, parameter: E, gradient: E, state: [E; N])
    -> (E, [E; N]);
}

/// A constant that Burn computes in f32.
pub(super) fn of<E: Number>(constant: f32) -> E {
    E::of(f64::from(constant))
}

/// The moving average of a number: only its new part in the first step.
#[inline(always)]
pub(super) fn average<E: Number, const FIRST: bool>(before: E, kept: E, new: E) -> E {
    if FIRST { new } else { before * kept + new }
}

/// The gradient with an L2 penalty on the parameter.
#[inline(always)]
pub(super) fn penalised<E: Number>(penalty: Option<E>, parameter: E, gradient: E) -> E {
    match penalty {
        Some(penalty) => parameter * penalty + gradient,
        None => gradient,
    }
}
