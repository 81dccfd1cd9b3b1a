//! AdamW: Adam with decoupled weight decay.

use super::rule::{Rule, average, of};
use crate::offload::number::Number;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct AdamW {
    pub(in super::super) beta_1: f32,
    pub(in super::super) beta_2: f32,
    pub(in super::super) epsilon: f32,
    pub(in super::super) weight_decay: f32,
}

#[derive(Clone, Copy)]
pub(in super::super) struct Constants<E> {
    beta_1: E,
    beta_2: E,
    new_1: E,
    new_2: E,
    correction_1: E,
    correction_2: E,
    epsilon: E,
    /// One without decay, and a product with one changes no bit.
    kept: E,
    rate: E,
}

impl<E: Number> Rule<E, 2> for AdamW {
    type Constants = Constants<E>;

    fn constants(&self, rate: f64, time: usize) -> Constants<E> {
        let time = time as i32;
        Constants {
            beta_1: of(self.beta_1),
            beta_2: of(self.beta_2),
            new_1: of(1.0 - self.beta_1),
            new_2: of(1.0 - self.beta_2),
            correction_1: of(1.0 - self.beta_1.powi(time)),
            correction_2: of(1.0 - self.beta_2.powi(time)),
            epsilon: of(self.epsilon),
            kept: E::of(1.0 - rate * f64::from(self.weight_decay)),
            rate: E::of(rate),
        }
    }

    #[inline(always)]
    fn element<const FIRST: bool>(c: &Constants<E>, parameter: E, gradient: E, [first, second]: [E; 2]) -> (E, [E; 2]) {
        let first = average::<E, FIRST>(first, c.beta_1, gradient * c.new_1);
        let second = average::<E, FIRST>(second, c.beta_2, (gradient * gradient) * c.new_2);
        let delta = (first / c.correction_1) / ((second / c.correction_2).root() + c.epsilon);
        (parameter * c.kept - delta * c.rate, [first, second])
    }
}
