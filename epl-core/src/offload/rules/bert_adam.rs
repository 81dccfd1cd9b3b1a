//! Adam without bias correction, with decoupled weight decay. Its constants are computed in f64, as ours on a device are.

use super::rule::{Rule, average};
use crate::offload::number::Number;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct BertAdam {
    pub(in super::super) beta_1: f64,
    pub(in super::super) beta_2: f64,
    pub(in super::super) epsilon: f64,
    pub(in super::super) weight_decay: f64,
}

#[derive(Clone, Copy)]
pub(in super::super) struct Constants<E> {
    beta_1: E,
    beta_2: E,
    new_1: E,
    new_2: E,
    epsilon: E,
    /// One without decay, and a product with one changes no bit.
    kept: E,
    rate: E,
}

impl<E: Number> Rule<E, 2> for BertAdam {
    type Constants = Constants<E>;

    fn constants(&self, rate: f64, _time: usize) -> Constants<E> {
        Constants {
            beta_1: E::of(self.beta_1),
            beta_2: E::of(self.beta_2),
            new_1: E::of(1.0 - self.beta_1),
            new_2: E::of(1.0 - self.beta_2),
            epsilon: E::of(self.epsilon),
            kept: E::of(1.0 - rate * self.weight_decay),
            rate: E::of(rate),
        }
    }

    #[inline(always)]
    fn element<const FIRST: bool>(c: &Constants<E>, parameter: E, gradient: E, [first, second]: [E; 2]) -> (E, [E; 2]) {
        let first = average::<E, FIRST>(first, c.beta_1, gradient * c.new_1);
        let second = average::<E, FIRST>(second, c.beta_2, (gradient * gradient) * c.new_2);
        let delta = first / (second.root() + c.epsilon);
        (parameter * c.kept - delta * c.rate, [first, second])
    }
}
