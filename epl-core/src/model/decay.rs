//! Parameters that are moving averages of others, and how they move.

use std::f64::consts::PI;

/// What a parameter is a moving average of: after each step it is `decay · itself + (1 − decay) · of`.
#[derive(Clone, Debug, PartialEq)]
pub struct MovingAverage {
    /// The path of the parameter that it follows.
    pub of: String,
    /// How much of it stays.
    pub decay: AverageDecay,
}

/// How much of a moving average stays in a step; what it is an average of makes up the rest.
///
/// ```
/// use epl_core::AverageDecay;
///
/// let decay = AverageDecay::Cosine { first: 0.99, steps: 100 };
/// assert_eq!([0, 100, 200].map(|steps| decay.after(steps)), [0.99, 1.0, 1.0]);
/// assert!((decay.after(50) - 0.995).abs() < 1e-12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AverageDecay {
    /// The same in each step, in `[0, 1]`.
    Constant(f64),
    /// From `first`, in `[0, 1]`, to 1 along half a cosine over so many steps, as in BYOL and MoCo v3; from there on averages stay.
    Cosine {
        /// At the beginning.
        first: f64,
        /// The steps until it is 1, at least 1.
        steps: u64,
    },
}

impl AverageDecay {
    /// That of a step with which so many are made.
    pub fn after(self, steps: u64) -> f64 {
        match self {
            Self::Constant(decay) => decay,
            Self::Cosine { first, steps: length } => {
                let part = (steps as f64 / length as f64).min(1.0);
                1.0 - (1.0 - first) * (1.0 + (PI * part).cos()) / 2.0
            }
        }
    }

    /// What of it cannot be, and what should be.
    pub(crate) fn refusal(self) -> Option<String> {
        let (decay, steps) = match self {
            Self::Constant(decay) => (decay, 1),
            Self::Cosine { first, steps } => (first, steps),
        };
        match (0.0..=1.0).contains(&decay) {
            false => Some(format!("a moving average of which {decay} stays in a step; give a share in [0, 1]")),
            true if steps == 0 => Some("a moving average that stays after 0 steps; give at least 1".to_string()),
            true => None,
        }
    }
}
