//! The learning rate of each step.
//!
//! - [`LearningRate`]: what a trainer asks; any function of the step is one;
//! - [`LrSchedule`]: a warm-up and one of the usual shapes, as the options `schedule.*` name them;
//! - [`SequentialLr`]: one after the other;
//! - [`BurnLrSchedule`]: Burn's schedulers, and those written for Burn.

mod burn_schedule;
mod sequential;
mod schedule;

use crate::params::ParamRecord;

pub use burn_schedule::BurnLrSchedule;
pub use schedule::{Decay, LrSchedule};
pub use sequential::SequentialLr;

/// The rate as a function of the step alone, so that a resumed run goes on where it was.
///
/// ```
/// use epl_core::trainer::learning_rate::LearningRate;
///
/// let triangle = |step: u64| 0.01 * (1.0 - (step as f64 / 50.0 - 1.0).abs()).max(0.0);
/// assert_eq!([0, 25, 50, 100].map(|step| triangle.at(step)), [0.0, 0.005, 0.01, 0.0]);
/// ```
pub trait LearningRate: Send + Sync {
    /// The rate of a step; 0 is the first. A finite number of at least 0, the same on every rank.
    fn at(&self, step: u64) -> f64;

    /// The rates of these parameters in a step, one of each, where they are different ones: those of
    /// [`BurnLrSchedule::from_module`]. None: all have that of [`at`](Self::at).
    fn of_parameters(&self, step: u64, parameters: &[ParamRecord]) -> Option<Vec<f64>> {
        let _ = (step, parameters);
        None
    }
}

impl LearningRate for Box<dyn LearningRate + '_> {
    fn at(&self, step: u64) -> f64 {
        (**self).at(step)
    }

    fn of_parameters(&self, step: u64, parameters: &[ParamRecord]) -> Option<Vec<f64>> {
        (**self).of_parameters(step, parameters)
    }
}

impl<F: Fn(u64) -> f64 + Send + Sync> LearningRate for F {
    fn at(&self, step: u64) -> f64 {
        self(step)
    }
}
