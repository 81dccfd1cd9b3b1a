//! A warm-up, and then one of the usual shapes.
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
//! | polynomial | m + (r − m) · (1 − p)^power |
//! | cosine | m + (r − m) · (1 + cos πp) / 2 |
//! | inverse square root | max(m, r · √(max(W, 1) / (t + 1))) |
//! | step | max(m, r · γ^⌊(t − W) / every⌋) |
//! | multi-step | max(m, r · γ^n), where n milestones are at most t |
//! | exponential | max(m, r · γ^(t − W)) |
//! | Noam, t < W | r · d^−½ · (t + 1) · W^−1½ |
//! | Noam | max(m, r · d^−½ · (t + 1)^−½) |
//!
//! So no step of the schedule is spent on a rate of zero: the first has a W-th of the largest, and the shapes of a length S
//! reach the smallest rate at step S, the first after the schedule. The decay after the warm-up is the one of
//! BERT (linear), SGDR without restarts (cosine), T5 (inverse square root), and the Transformer (Noam; Vaswani et al., 2017,
//! "Attention Is All You Need", §5.3).

use std::f64::consts::PI;

use super::LearningRate;
use crate::config::{ConfigError, ScheduleConfig, ScheduleKind};

/// What a rate is multiplied by in steps, as in PyTorch, where the options do not say.
const GAMMA: f64 = 0.1;

/// How the rate goes on after the warm-up.
#[derive(Clone, Debug, PartialEq)]
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
    /// Along a power of what is left of the schedule, to the smallest rate.
    Polynomial {
        /// Length of the whole schedule with its warm-up.
        steps: u64,
        /// The power; 1 is a straight line.
        power: f64,
    },
    /// In steps of equal length.
    Step {
        /// Their length, at least 1.
        every: u64,
        /// What the rate is multiplied by from one to the next.
        gamma: f64,
    },
    /// In steps that begin at the milestones.
    MultiStep {
        /// Where they begin, counted with the warm-up, ascending.
        milestones: Vec<u64>,
        /// What the rate is multiplied by at each.
        gamma: f64,
    },
    /// In each step by the same factor.
    Exponential {
        /// The factor.
        gamma: f64,
    },
    /// The Transformer's: the rate is a factor, and the largest rate is at the end of the warm-up.
    Noam {
        /// The model's width d.
        model_size: u64,
    },
}

/// A learning-rate schedule.
///
/// ```
/// use epl_core::trainer::learning_rate::{Decay, LearningRate, LrSchedule};
///
/// let rate = LrSchedule::new(0.1, Decay::Linear { steps: 12 }).with_warmup(2);
/// assert_eq!([0, 1, 2, 7, 12].map(|step| rate.at(step)), [0.05, 0.1, 0.1, 0.05, 0.0]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LrSchedule {
    rate: f64,
    min_rate: f64,
    warmup_steps: u64,
    decay: Decay,
}

impl LrSchedule {
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
    /// A shape without an option that it needs, a warm-up longer than the schedule, a smallest rate
    /// above the rate, or of a rate that never falls.
    pub fn from_config(config: &ScheduleConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        // Not among the options, as a program may choose the shape itself.
        if config.kind == ScheduleKind::Constant && config.min_rate > 0.0 {
            return Err(ConfigError::RateNeverFalls { min_rate: config.min_rate });
        }
        // What a shape needs is there: it was checked above.
        let number = |value: Option<usize>| value.unwrap_or(1) as u64;
        let gamma = config.gamma.unwrap_or(GAMMA);
        let decay = match config.kind {
            ScheduleKind::Constant => Decay::Constant,
            ScheduleKind::Linear => Decay::Linear { steps: number(config.steps) },
            ScheduleKind::Cosine => Decay::Cosine { steps: number(config.steps) },
            ScheduleKind::InverseSquareRoot => Decay::InverseSquareRoot,
            ScheduleKind::Polynomial => Decay::Polynomial { steps: number(config.steps), power: config.power },
            ScheduleKind::Step => Decay::Step { every: number(config.every), gamma },
            ScheduleKind::MultiStep => {
                Decay::MultiStep { milestones: config.milestones.iter().map(|step| *step as u64).collect(), gamma }
            }
            ScheduleKind::Exponential => Decay::Exponential { gamma },
            ScheduleKind::Noam => Decay::Noam { model_size: number(config.model_size) },
        };
        let schedule = Self::new(config.rate, decay).with_min_rate(config.min_rate);
        Ok(schedule.with_warmup(config.warmup_steps as u64))
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

    fn multiplied(&self, factor: f64) -> f64 {
        let rate = self.rate * factor;
        // What is no number stays so, and is refused by the engine.
        if rate < self.min_rate { self.min_rate } else { rate }
    }
}

impl LearningRate for LrSchedule {
    fn at(&self, step: u64) -> f64 {
        let counted = step as f64 + 1.0;
        if let Decay::Noam { model_size } = self.decay {
            let width = (model_size as f64).sqrt();
            return match step < self.warmup_steps {
                true => self.rate * counted * (self.warmup_steps as f64).powf(-1.5) / width,
                false => self.multiplied(counted.powf(-0.5) / width),
            };
        }
        let Some(after) = step.checked_sub(self.warmup_steps) else {
            return self.rate * (counted / self.warmup_steps as f64);
        };
        match &self.decay {
            Decay::Constant | Decay::Noam { .. } => self.rate,
            Decay::Linear { steps } => self.between(1.0 - self.progress(step, *steps)),
            Decay::Cosine { steps } => self.between((1.0 + (PI * self.progress(step, *steps)).cos()) / 2.0),
            Decay::Polynomial { steps, power } => self.between((1.0 - self.progress(step, *steps)).powf(*power)),
            Decay::InverseSquareRoot => self.multiplied((self.warmup_steps.max(1) as f64 / counted).sqrt()),
            Decay::Step { every, gamma } => {
                self.multiplied(gamma.powf(after.checked_div(*every).map_or(f64::NAN, |passed| passed as f64)))
            }
            Decay::MultiStep { milestones, gamma } => {
                let passed = milestones.iter().filter(|milestone| **milestone <= step).count();
                self.multiplied(gamma.powf(passed as f64))
            }
            Decay::Exponential { gamma } => self.multiplied(gamma.powf(after as f64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn rates<const N: usize>(schedule: &LrSchedule, steps: [u64; N]) -> [f64; N] {
        // Twelve digits: the last bits depend on the platform's cosine.
        steps.map(|step| (schedule.at(step) * 1e12).round() / 1e12)
    }

    #[test]
    fn the_warm_up_is_a_line_to_the_rate() {
        for decay in [Decay::Constant, Decay::Linear { steps: 10 }, Decay::Cosine { steps: 10 }] {
            let schedule = LrSchedule::new(1.0, decay).with_warmup(4).with_min_rate(0.1);
            assert_eq!(rates(&schedule, [0, 1, 2, 3, 4]), [0.25, 0.5, 0.75, 1.0, 1.0]);
        }
        let schedule = LrSchedule::new(1.0, Decay::InverseSquareRoot).with_warmup(4);
        assert_eq!(rates(&schedule, [0, 1, 2, 3]), [0.25, 0.5, 0.75, 1.0]);
    }

    #[test]
    fn constant_stays() {
        assert_eq!(rates(&LrSchedule::new(0.3, Decay::Constant), [0, 7, u64::MAX]), [0.3; 3]);
    }

    #[test]
    fn linear_falls_to_the_smallest_rate() {
        let schedule = LrSchedule::new(1.0, Decay::Linear { steps: 10 }).with_warmup(2).with_min_rate(0.2);
        assert_eq!(rates(&schedule, [2, 4, 6, 9, 10, 11, 1000]), [1.0, 0.8, 0.6, 0.3, 0.2, 0.2, 0.2]);
        // BERT's: 3e-5 over 1000 steps, a tenth of them warm-up.
        let schedule = LrSchedule::new(3e-5, Decay::Linear { steps: 1000 }).with_warmup(100);
        assert_eq!(rates(&schedule, [0, 99, 550, 1000]), [3e-7, 3e-5, 1.5e-5, 0.0]);
    }

    #[test]
    fn cosine_falls_to_the_smallest_rate() {
        let schedule = LrSchedule::new(1.0, Decay::Cosine { steps: 6 }).with_warmup(2);
        let expected = [1.0, 0.853553390593, 0.5, 0.146446609407, 0.0, 0.0];
        assert_eq!(rates(&schedule, [2, 3, 4, 5, 6, 99]), expected);
        assert_eq!(rates(&schedule.clone().with_min_rate(0.5), [4, 6]), [0.75, 0.5]);
    }

    #[test]
    fn inverse_square_root_falls_with_the_step() {
        let schedule = LrSchedule::new(1.0, Decay::InverseSquareRoot).with_warmup(4);
        assert_eq!(rates(&schedule, [3, 15, 63, 399]), [1.0, 0.5, 0.25, 0.1]);
        assert_eq!(rates(&schedule.clone().with_min_rate(0.3), [15, 63, 399]), [0.5, 0.3, 0.3]);
        let without = LrSchedule::new(1.0, Decay::InverseSquareRoot);
        assert_eq!(rates(&without, [0, 3, 99]), [1.0, 0.5, 0.1]);
    }

    #[test]
    fn a_warm_up_as_long_as_the_schedule_is_all_of_it() {
        let schedule = LrSchedule::new(1.0, Decay::Linear { steps: 4 }).with_warmup(4);
        assert_eq!(rates(&schedule, [0, 3, 4, 5]), [0.25, 1.0, 0.0, 0.0]);
        let longer = LrSchedule::new(1.0, Decay::Cosine { steps: 4 }).with_warmup(6);
        assert_eq!(rates(&longer, [5, 6]), [1.0, 0.0]);
    }

    #[test]
    fn the_options_describe_it() {
        let base = Config::new().schedule;
        let config = ScheduleConfig {
            kind: ScheduleKind::Cosine,
            rate: 0.5,
            warmup_steps: 3,
            steps: Some(30),
            min_rate: 0.1,
            ..base
        };
        let expected = LrSchedule::new(0.5, Decay::Cosine { steps: 30 }).with_warmup(3).with_min_rate(0.1);
        assert_eq!(LrSchedule::from_config(&config).unwrap(), expected);
        let endless = ScheduleConfig { steps: None, ..config };
        assert_eq!(
            LrSchedule::from_config(&endless).unwrap_err().to_string(),
            "schedule.kind = \"cosine\" needs the length of the schedule: set schedule.steps"
        );
        let level = ScheduleConfig { kind: ScheduleKind::Constant, ..endless };
        assert_eq!(
            LrSchedule::from_config(&level).unwrap_err().to_string(),
            "schedule.min_rate = 0.1 has no effect without a schedule.kind other than constant; set that, or leave \
             schedule.min_rate out"
        );
    }

    #[test]
    fn a_polynomial_falls_to_the_smallest_rate() {
        let schedule =
            LrSchedule::new(1.0, Decay::Polynomial { steps: 12, power: 2.0 }).with_warmup(2).with_min_rate(0.1);
        assert_eq!(rates(&schedule, [1, 2, 7, 12, 99]), [1.0, 1.0, 0.325, 0.1, 0.1]);
    }

    #[test]
    fn steps_and_milestones_multiply() {
        let step = LrSchedule::new(1.0, Decay::Step { every: 3, gamma: 0.5 }).with_warmup(2);
        assert_eq!(rates(&step, [0, 1, 2, 4, 5, 7, 8]), [0.5, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25]);
        let multi = Decay::MultiStep { milestones: vec![3, 5], gamma: 0.1 };
        let multi = LrSchedule::new(1.0, multi).with_min_rate(0.02);
        assert_eq!(rates(&multi, [0, 2, 3, 4, 5, 9]), [1.0, 1.0, 0.1, 0.1, 0.02, 0.02]);
        let exponential = LrSchedule::new(1.0, Decay::Exponential { gamma: 0.5 }).with_warmup(2);
        assert_eq!(rates(&exponential, [0, 1, 2, 3, 5]), [0.5, 1.0, 1.0, 0.5, 0.125]);
    }

    #[test]
    fn noam_is_the_transformers() {
        // Of the paper: d = 512, 4000 steps of warm-up; its highest rate is 512^-½ · 4000^-½.
        let schedule = LrSchedule::new(1.0, Decay::Noam { model_size: 512 }).with_warmup(4000);
        assert_eq!(rates(&schedule, [0, 3999, 15_999]), [1.74693e-7, 0.000698771243, 0.000349385621]);
    }

    #[test]
    fn nothing_hides_what_is_no_number() {
        for decay in [Decay::Step { every: 0, gamma: 0.5 }, Decay::Exponential { gamma: f64::NAN }] {
            assert!(LrSchedule::new(1.0, decay).with_min_rate(0.1).at(3).is_nan());
        }
    }

    #[test]
    fn a_shape_says_what_it_needs() {
        let base = Config::new().schedule;
        let said = |config: ScheduleConfig| LrSchedule::from_config(&config).unwrap_err().to_string();
        let step = ScheduleConfig { kind: ScheduleKind::Step, ..base.clone() };
        assert_eq!(said(step), "schedule.kind = \"step\" needs schedule.every");
        let noam = ScheduleConfig { kind: ScheduleKind::Noam, model_size: Some(8), ..base.clone() };
        assert_eq!(said(noam), "schedule.kind = \"noam\" needs schedule.warmup_steps");
        let exponential = ScheduleConfig { kind: ScheduleKind::Exponential, ..base.clone() };
        assert_eq!(said(exponential.clone()), "schedule.kind = \"exponential\" needs schedule.gamma");
        let rising = ScheduleConfig { gamma: Some(1.5), ..exponential };
        assert_eq!(said(rising), "schedule.gamma = 1.5, and must be above 0 and at most 1");
        let noam = ScheduleConfig {
            kind: ScheduleKind::Noam,
            model_size: Some(16),
            warmup_steps: 4,
            rate: 1.0,
            ..base.clone()
        };
        assert_eq!(
            said(ScheduleConfig { min_rate: 0.2, ..noam }),
            "schedule.min_rate = 0.2 exceeds schedule.rate = 0.125"
        );
        let milestones = ScheduleConfig { kind: ScheduleKind::MultiStep, milestones: vec![5, 3], ..base };
        assert_eq!(
            said(milestones),
            "schedule.milestones = [5, 3] must ascend, none before the warm-up ends, at step 0"
        );
    }
}
