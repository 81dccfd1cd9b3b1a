//! Lion: the sign of an average of gradients.

use super::rule::{Rule, average, of};
use crate::offload::number::Number;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Lion {
    pub(in super::super) beta_1: f32,
    pub(in super::super) beta_2: f32,
    pub(in super::super) weight_decay: f32,
}

#[derive(Clone, Copy)]
pub(in super::super) struct Constants<E> {
    beta_1: E,
    beta_2: E,
    new_1: E,
    new_2: E,
    kept: E,
    rate: E,
}

impl<E: Number> Rule<E, 1> for Lion {
    type Constants = Constants<E>;

    fn constants(&self, rate: f64, _time: usize) -> Constants<E> {
        Constants {
            beta_1: of(self.beta_1),
            beta_2: of(self.beta_2),
            new_1: of(1.0 - self.beta_1),
            new_2: of(1.0 - self.beta_2),
            kept: E::of(1.0 - rate * f64::from(self.weight_decay)),
            rate: E::of(rate),
        }
    }

    #[inline(always)]
    fn element<const FIRST: bool>(c: &Constants<E>, parameter: E, gradient: E, [momentum]: [E; 1]) -> (E, [E; 1]) {
        let update = average::<E, FIRST>(momentum, c.beta_1, gradient * c.new_1).sign();
        let momentum = average::<E, FIRST>(momentum, c.beta_2, gradient * c.new_2);
        (parameter * c.kept - update * c.rate, [momentum])
    }
}
