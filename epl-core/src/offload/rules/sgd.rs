//! SGD, with momentum or without.

use super::rule::{Rule, of, penalised};
use crate::offload::number::Number;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Sgd {
    pub(in super::super) momentum: Option<Momentum>,
    pub(in super::super) penalty: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Momentum {
    pub(in super::super) factor: f32,
    pub(in super::super) dampening: f64,
    pub(in super::super) nesterov: bool,
}

#[derive(Clone, Copy)]
pub(in super::super) struct Constants<E> {
    penalty: Option<E>,
    factor: E,
    new: E,
    nesterov: bool,
    rate: E,
}

/// `N` is one with momentum, else zero.
impl<E: Number, const N: usize> Rule<E, N> for Sgd {
    type Constants = Constants<E>;

    fn constants(&self, rate: f64, _time: usize) -> Constants<E> {
        let momentum = self.momentum.unwrap_or(Momentum { factor: 0.0, dampening: 0.0, nesterov: false });
        Constants {
            penalty: self.penalty.map(of),
            factor: of(momentum.factor),
            new: E::of(1.0 - momentum.dampening),
            nesterov: momentum.nesterov,
            rate: E::of(rate),
        }
    }

    #[inline(always)]
    fn element<const FIRST: bool>(c: &Constants<E>, parameter: E, gradient: E, mut state: [E; N]) -> (E, [E; N]) {
        let mut gradient = penalised(c.penalty, parameter, gradient);
        if let Some(velocity) = state.first_mut() {
            // The first gradient is not dampened.
            *velocity = if FIRST { gradient } else { gradient * c.new + *velocity * c.factor };
            gradient = if c.nesterov { *velocity * c.factor + gradient } else { *velocity };
        }
        (parameter - gradient * c.rate, state)
    }
}
