//! RMSProp, centred or not, with momentum or without.

use super::rule::{Rule, average, of, penalised};
use crate::offload::number::Number;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct RmsProp {
    pub(in super::super) alpha: f32,
    /// None where Burn's is not above zero.
    pub(in super::super) momentum: Option<f32>,
    pub(in super::super) epsilon: f32,
    pub(in super::super) centered: bool,
    pub(in super::super) penalty: Option<f32>,
}

#[derive(Clone, Copy)]
pub(in super::super) struct Constants<E> {
    penalty: Option<E>,
    alpha: E,
    new: E,
    centered: bool,
    momentum: Option<E>,
    epsilon: E,
    rate: E,
}

impl RmsProp {
    pub(in super::super) fn fields(&self) -> &'static [&'static str] {
        match (self.centered, self.momentum) {
            (false, None) => &["square_avg.square_avg"],
            (false, Some(_)) => &["square_avg.square_avg", "momentum.buf"],
            (true, None) => &["square_avg.square_avg", "centered.grad_avg"],
            (true, Some(_)) => &["square_avg.square_avg", "centered.grad_avg", "momentum.buf"],
        }
    }
}

/// `N` is how many fields there are.
impl<E: Number, const N: usize> Rule<E, N> for RmsProp {
    type Constants = Constants<E>;

    fn constants(&self, rate: f64, _time: usize) -> Constants<E> {
        Constants {
            penalty: self.penalty.map(of),
            alpha: of(self.alpha),
            new: of(1.0 - self.alpha),
            centered: self.centered,
            momentum: self.momentum.map(of),
            epsilon: of(self.epsilon),
            rate: E::of(rate),
        }
    }

    #[inline(always)]
    fn element<const FIRST: bool>(c: &Constants<E>, parameter: E, gradient: E, mut state: [E; N]) -> (E, [E; N]) {
        let gradient = penalised(c.penalty, parameter, gradient);
        state[0] = average::<E, FIRST>(state[0], c.alpha, (gradient * gradient) * c.new);
        let mut variance = state[0];
        if c.centered && N > 1 {
            state[1] = average::<E, FIRST>(state[1], c.alpha, gradient * c.new);
            variance = variance - state[1] * state[1];
        }
        let mut delta = gradient / (variance.root() + c.epsilon);
        if let Some(momentum) = c.momentum {
            state[N - 1] = average::<E, FIRST>(state[N - 1], momentum, delta);
            delta = state[N - 1];
        }
        (parameter - delta * c.rate, state)
    }
}
