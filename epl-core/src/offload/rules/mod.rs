//! What one step does to one element, an optimizer a file.
//!
//! The arithmetic is Burn's, operation by operation: a constant that Burn computes in f32 is computed in f32 here, and
//! a scalar is rounded to the element type before it is used, as Flex does. No two operations are fused into one.

mod adam;
mod adamw;
mod lion;
mod rmsprop;
mod sgd;

pub(super) use adam::Adam;
pub(super) use adamw::AdamW;
pub(super) use lion::Lion;
pub(super) use rmsprop::RmsProp;
pub(super) use sgd::{Momentum, Sgd};

use super::number::Number;

/// An element-wise update with `N` numbers of state.
pub(super) trait Rule<E: Number, const N: usize> {
    /// What is the same for all elements of a parameter in a step.
    type Constants: Copy + Send + Sync;

    /// `time` is one in a parameter's first step.
    fn constants(&self, rate: f64, time: usize) -> Self::Constants;

    /// The parameter and its state after the step. In the first step the state is not there yet: Burn leaves its terms
    /// out, which is not the same as zero (the sum of 0 and -0 is 0).
    fn element<const FIRST: bool>(constants: &Self::Constants, parameter: E, gradient: E, state: [E; N])
    -> (E, [E; N]);
}

/// An optimizer that updates in one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Adam(Adam),
    AdamW(AdamW),
    Lion(Lion),
    RmsProp(RmsProp),
    Sgd(Sgd),
}

impl Kind {
    /// The tensors of state, by their names in Burn's record.
    pub(super) fn fields(&self) -> &'static [&'static str] {
        match self {
            Self::Adam(_) | Self::AdamW(_) => &["momentum.moment_1", "momentum.moment_2"],
            Self::Lion(_) => &["momentum"],
            Self::RmsProp(rule) => rule.fields(),
            Self::Sgd(Sgd { momentum: Some(_), .. }) => &["momentum.velocity"],
            Self::Sgd(_) => &[],
        }
    }

    /// Under what name Burn's record counts a parameter's steps, if it does.
    pub(super) fn time(&self) -> Option<&'static str> {
        matches!(self, Self::Adam(_) | Self::AdamW(_)).then_some("momentum.time")
    }
}

/// A constant that Burn computes in f32.
fn of<E: Number>(constant: f32) -> E {
    E::of(f64::from(constant))
}

/// The moving average of a number: only its new part in the first step.
#[inline(always)]
fn average<E: Number, const FIRST: bool>(before: E, kept: E, new: E) -> E {
    if FIRST { new } else { before * kept + new }
}

/// The gradient with an L2 penalty on the parameter.
#[inline(always)]
fn penalised<E: Number>(penalty: Option<E>, parameter: E, gradient: E) -> E {
    match penalty {
        Some(penalty) => parameter * penalty + gradient,
        None => gradient,
    }
}
