//! Schedules one after the other.

use std::fmt;

use super::LearningRate;
use crate::params::ParamRecord;

/// Schedules one after the other, each counting its steps from where it begins, as PyTorch's `SequentialLR`.
///
/// ```
/// use epl_core::trainer::learning_rate::{SequentialLr, Decay, LearningRate, LrSchedule};
///
/// let rate = SequentialLr::new(LrSchedule::new(0.1, Decay::Constant))
///     .then(100, LrSchedule::new(0.1, Decay::Linear { steps: 50 }))
///     .then(150, |_| 0.001);
/// assert_eq!([99, 100, 125, 150].map(|step| rate.at(step)), [0.1, 0.1, 0.05, 0.001]);
/// ```
pub struct SequentialLr<'a> {
    first: Box<dyn LearningRate + 'a>,
    /// Ascending by where they begin.
    later: Vec<(u64, Box<dyn LearningRate + 'a>)>,
}

impl fmt::Debug for SequentialLr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let starts: Vec<u64> = self.later.iter().map(|(start, _)| *start).collect();
        f.debug_tuple("SequentialLr").field(&starts).finish()
    }
}

impl<'a> SequentialLr<'a> {
    /// One schedule, from step 0.
    pub fn new(first: impl LearningRate + 'a) -> Self {
        Self { first: Box::new(first), later: Vec::new() }
    }

    /// Goes over to another schedule at this step. Of two that begin at the same step the one that is added later counts.
    #[must_use]
    pub fn then(mut self, start: u64, next: impl LearningRate + 'a) -> Self {
        let index = self.later.partition_point(|(other, _)| *other <= start);
        self.later.insert(index, (start, Box::new(next)));
        self
    }

    /// The schedule of a step, and which of its own steps that is.
    fn of_step(&self, step: u64) -> (&(dyn LearningRate + 'a), u64) {
        match self.later.iter().rfind(|(start, _)| *start <= step) {
            Some((start, schedule)) => (&**schedule, step - start),
            None => (&*self.first, step),
        }
    }
}

impl LearningRate for SequentialLr<'_> {
    fn at(&self, step: u64) -> f64 {
        let (schedule, step) = self.of_step(step);
        schedule.at(step)
    }

    fn of_parameters(&self, step: u64, parameters: &[ParamRecord]) -> Option<Vec<f64>> {
        let (schedule, step) = self.of_step(step);
        schedule.of_parameters(step, parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_adding_does_not_matter_but_for_the_same_step() {
        let rate = SequentialLr::new(|step| step as f64).then(10, |_| 2.0).then(5, |step| 100.0 + step as f64);
        assert_eq!([0, 4, 5, 9, 10, 99].map(|step| rate.at(step)), [0.0, 4.0, 100.0, 104.0, 2.0, 2.0]);
        assert_eq!(rate.then(10, |_| 3.0).at(12), 3.0);
    }
}
