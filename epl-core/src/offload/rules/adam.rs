//! Adam, with an L2 penalty if asked for.

use super::rule::{Rule, average, of, penalised};
use crate::offload::number::Number;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) struct Adam {
    pub(in super::super) beta_1: f32,
    pub(in super::super) beta_2: f32,
    pub(in super::super) epsilon: f32,
    pub(in super::super) penalty: Option<f32>,
}

#[derive(Clone, Copy)]
pub(in super::super) struct Constants<E> {
    penalty: Option<E>,
    beta_1: E,
    beta_2: E,
    new_1: E,
    new_2: E,
    /// Both bias corrections in one.
    combined: E,
    epsilon: E,
    rate: E,
}

impl<E: Number> Rule<E, 2> for Adam {
    type Constants = Constants<E>;

    fn constants(&self, rate: f64, time: usize) -> Constants<E> {
        let time = time as i32;
        let root = (1.0 - self.beta_2.powi(time)).sqrt();
        Constants {
            penalty: self.penalty.map(of),
            beta_1: of(self.beta_1),
            beta_2: of(self.beta_2),
            new_1: of(1.0 - self.beta_1),
            new_2: of(1.0 - self.beta_2),
            combined: of(root / (1.0 - self.beta_1.powi(time))),
            epsilon: of(self.epsilon * root),
            rate: E::of(rate),
        }
    }

    #[inline(always)]
    fn element<const FIRST: bool>(c: &Constants<E>, parameter: E, gradient: E, [first, second]: [E; 2]) -> (E, [E; 2]) {
        let gradient = penalised(c.penalty, parameter, gradient);
        let first = average::<E, FIRST>(first, c.beta_1, gradient * c.new_1);
        let second = average::<E, FIRST>(second, c.beta_2, (gradient * gradient) * c.new_2);
        let delta = (first * c.combined) / (second.root() + c.epsilon);
        (parameter - delta * c.rate, [first, second])
    }
}
