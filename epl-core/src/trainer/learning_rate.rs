//! The learning rate as a function of the step.
//!
//! ```text
//!  rate ........../''''''''''''''''''  constant
//!                /:  ''--..
//!               / :        ''--..      linear, cosine
//!              /  :              ''--..
//!  min_rate ../...:....................''--------
//!            0    warmup               steps
//! ```
//!
//! Step 0 is the first. With rate r, smallest rate m, W warm-up steps and a length of S steps:
//!
//! | part | rate at step t |
//! |---|---|
//! | warm-up, t < W | r · (t + 1) / W |
//! | constant | r |
//! | linear | m + (r − m) · (1 − p), where p = (t − W) / (S − W), at most 1 |
//! | cosine | m + (r − m) · (1 + cos πp) / 2 |
//! | inverse square root | max(m, r · √(max(W, 1) / (t + 1))) |
//!
//! So no step of the schedule is spent on a rate of zero: the first has r / W, and the smallest rate
//! is reached at step S, the first after the schedule. The decay after the warm-up is the one of
//! BERT (linear), SGDR without restarts (cosine), and T5 (inverse square root).

use std::f64::consts::PI;

use crate::config::{ConfigError, ScheduleConfig, ScheduleKind};

/// How the rate goes on after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// It stays.
    Constant,
    /// In a straight line to the smallest rate.
    Linear {
        /// Length of the whole schedule with its warm-up.
        steps: u64,
    },
    /// Along half a cosine to the smallest rate.
    Cosine {
        /// Length of the whole schedule with its warm-up.
        steps: u64,
    },
    /// With the inverse square root of the step.
    InverseSquareRoot,
}

/// A learning-rate schedule: a pure function of the step, so a resumed run needs the step only.
///
/// ```
/// use epl_core::trainer::learning_rate::{Decay, LearningRate};
///
/// let rate = LearningRate::new(0.1, Decay::Linear { steps: 12 }).with_warmup(2);
/// assert_eq!([0, 1, 2, 7, 12].map(|step| rate.at(step)), [0.05, 0.1, 0.1, 0.05, 0.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    rate: f64,
    min_rate: f64,
    warmup_steps: u64,
    decay: Decay,
}

impl LearningRate {
    /// A schedule without warm-up whose smallest rate is 0.
    pub fn new(rate: f64, decay: Decay) -> Self {
        Self { rate, min_rate: 0.0, warmup_steps: 0, decay }
    }

    /// Rises in a straight line over this many steps first. They are part of the schedule's length.
    pub fn with_warmup(self, warmup_steps: u64) -> Self {
        Self { warmup_steps, ..self }
    }

    /// Never falls below this after the warm-up.
    pub fn with_min_rate(self, min_rate: f64) -> Self {
        Self { min_rate, ..self }
    }

    /// The schedule that the options `schedule.*` describe.
    ///
    /// # Errors
    ///
    /// A shape that needs a length without one, a warm-up longer than the schedule, a smallest rate
    /// above the rate, or of a rate that never falls.
    pub fn from_config(config: &ScheduleConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        // Not among the options, as a program may choose the shape itself.
        if config.kind == ScheduleKind::Constant && config.min_rate > 0.0 {
            return Err(ConfigError::RateNeverFalls { min_rate: config.min_rate });
        }
        let steps = || {
            let kind = config.kind.word();
            config.steps.map(|steps| steps as u64).ok_or(ConfigError::ScheduleWithoutEnd { kind })
        };
        let decay = match config.kind {
            ScheduleKind::Constant => Decay::Constant,
            ScheduleKind::Linear => Decay::Linear { steps: steps()? },
            ScheduleKind::Cosine => Decay::Cosine { steps: steps()? },
            ScheduleKind::InverseSquareRoot => Decay::InverseSquareRoot,
        };
        let schedule = Self::new(config.rate, decay).with_min_rate(config.min_rate);
        Ok(schedule.with_warmup(config.warmup_steps as u64))
    }

    /// The rate of a step; 0 is the first.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.rate * ((step + 1) as f64 / self.warmup_steps as f64);
        }
        match self.decay {
            Decay::Constant => self.rate,
            Decay::Linear { steps } => self.between(1.0 - self.progress(step, steps)),
            Decay::Cosine { steps } => self.between((1.0 + (PI * self.progress(step, steps)).cos()) / 2.0),
            Decay::InverseSquareRoot => {
                let start = self.warmup_steps.max(1) as f64;
                (self.rate * (start / (step as f64 + 1.0)).sqrt()).max(self.min_rate)
            }
        }
    }

    /// The part of the decay that is over, from 0 to 1.
    fn progress(&self, step: u64, steps: u64) -> f64 {
        if step >= steps {
            return 1.0;
        }
        (step - self.warmup_steps) as f64 / (steps - self.warmup_steps) as f64
    }

    fn between(&self, share: f64) -> f64 {
        self.min_rate + (self.rate - self.min_rate) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates<const N: usize>(schedule: LearningRate, steps: [u64; N]) -> [f64; N] {
        // Twelve digits: the last bits depend on the platform's cosine.
        steps.map(|step| (schedule.at(step) * 1e12).round() / 1e12)
    }

    #[test]
    fn the_warm_up_is_a_line_to_the_rate() {
        for decay in [Decay::Constant, Decay::Linear { steps: 10 }, Decay::Cosine { steps: 10 }] {
            let schedule = LearningRate::new(1.0, decay).with_warmup(4).with_min_rate(0.1);
            assert_eq!(rates(schedule, [0, 1, 2, 3, 4]), [0.25, 0.5, 0.75, 1.0, 1.0]);
        }
        let schedule = LearningRate::new(1.0, Decay::InverseSquareRoot).with_warmup(4);
        assert_eq!(rates(schedule, [0, 1, 2, 3]), [0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn constant_stays() {
        assert_eq!(rates(LearningRate::new(0.3, Decay::Constant), [0, 7, u64::MAX]), [0.3; 3]);
    }

    #[test]
    fn linear_falls_to_the_smallest_rate() {
        let schedule = LearningRate::new(1.0, Decay::Linear { steps: 10 }).with_warmup(2).with_min_rate(0.2);
        assert_eq!(rates(schedule, [2, 4, 6, 9, 10, 11, 1000]), [1.0, 0.8, 0.6, 0.3, 0.2, 0.2, 0.2]);
        // BERT's: 3e-5 over 1000 steps, a tenth of them warm-up.
        let schedule = LearningRate::new(3e-5, Decay::Linear { steps: 1000 }).with_warmup(100);
        assert_eq!(rates(schedule, [0, 99, 550, 1000]), [3e-7, 3e-5, 1.5e-5, 0.0]);
    }

    #[test]
    fn cosine_falls_to_the_smallest_rate() {
        let schedule = LearningRate::new(1.0, Decay::Cosine { steps: 6 }).with_warmup(2);
        let expected = [1.0, 0.853553390593, 0.5, 0.146446609407, 0.0, 0.0];
        assert_eq!(rates(schedule, [2, 3, 4, 5, 6, 99]), expected);
        assert_eq!(rates(schedule.with_min_rate(0.5), [4, 6]), [0.75, 0.5]);
    }

    #[test]
    fn inverse_square_root_falls_with_the_step() {
        let schedule = LearningRate::new(1.0, Decay::InverseSquareRoot).with_warmup(4);
        assert_eq!(rates(schedule, [3, 15, 63, 399]), [1.0, 0.5, 0.25, 0.1]);
        assert_eq!(rates(schedule.with_min_rate(0.3), [15, 63, 399]), [0.5, 0.3, 0.3]);
        let without = LearningRate::new(1.0, Decay::InverseSquareRoot);
        assert_eq!(rates(without, [0, 3, 99]), [1.0, 0.5, 0.1]);
    }

    #[test]
    fn a_warm_up_as_long_as_the_schedule_is_all_of_it() {
        let schedule = LearningRate::new(1.0, Decay::Linear { steps: 4 }).with_warmup(4);
        assert_eq!(rates(schedule, [0, 3, 4, 5]), [0.25, 1.0, 0.0, 0.0]);
        let longer = LearningRate::new(1.0, Decay::Cosine { steps: 4 }).with_warmup(6);
        assert_eq!(rates(longer, [5, 6]), [1.0, 0.0]);
    }

    #[test]
    fn the_options_describe_it() {
        let config =
            ScheduleConfig { kind: ScheduleKind::Cosine, rate: 0.5, warmup_steps: 3, steps: Some(30), min_rate: 0.1 };
        let expected = LearningRate::new(0.5, Decay::Cosine { steps: 30 }).with_warmup(3).with_min_rate(0.1);
        assert_eq!(LearningRate::from_config(&config).unwrap(), expected);
        let endless = ScheduleConfig { steps: None, ..config };
        assert_eq!(
            LearningRate::from_config(&endless).unwrap_err().to_string(),
            "schedule.kind = \"cosine\" needs the length of the schedule: set schedule.steps"
        );
        let level = ScheduleConfig { kind: ScheduleKind::Constant, ..endless };
        assert_eq!(
            LearningRate::from_config(&level).unwrap_err().to_string(),
            "schedule.min_rate = 0.1 has no effect without a schedule.kind other than constant; set that, or leave \
             schedule.min_rate out"
        );
    }
}
