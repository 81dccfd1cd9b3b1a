//! The factor on the loss under mixed precision, as a law of the steps so far.
//!
//! Small gradients vanish in f16, so the loss is multiplied by a scale before backward, and the gradients are divided by
//! it once they are reduced. A step whose gradients are not finite is skipped, on all ranks.
//!
//! | | start | after a good step | after a step whose gradient is not finite | stops |
//! |---|---|---|---|---|
//! | f16, dynamic | 2^15 | doubles after every 2000 in a row | halves | where it would fall below 1 |
//! | a fixed number | that | stays | stays | at the 16th in a row |
//! | bf16, dynamic | 1: it has the range of f32 | stays | stays | at the 16th in a row |
//!
//! From its start a dynamic scale stands 15 such steps in a row too. It has no upper limit: it grows until a gradient
//! overflows, and halves then.

use serde::{Deserialize, Serialize};

use crate::config::{HalfDtype, LossScale};
use crate::error::{Error, Result};

/// A dynamic scale at first.
const START: f64 = 32_768.0;
/// After so many good steps in a row it is doubled.
const GROWTH_STEPS: u64 = 2000;
/// The least dynamic scale: below, a scale would take digits instead of saving them.
const LEAST: f64 = 1.0;
/// So many skipped steps in a row stop a run whose scale is fixed.
const MOST_IN_A_ROW: u64 = 16;

/// How the scale follows from the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Law {
    Dynamic,
    Fixed(f64),
}

/// What a checkpoint keeps of a [`LossScaler`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaleState {
    /// The factor on the loss of the next step.
    pub scale: f64,
    /// The good steps since the scale was changed, or a step was skipped.
    pub good_steps: u64,
    /// The skipped steps of the whole run.
    pub skipped: u64,
    /// The skipped steps since the last good one.
    pub skipped_in_a_row: u64,
}

/// The scale of the loss, step by step: the same on every rank, as long as each is told the same.
///
/// ```
/// use epl_core::config::{HalfDtype, LossScale};
/// use epl_core::optim::LossScaler;
///
/// let mut scaler = LossScaler::new(HalfDtype::F16, LossScale::Dynamic);
/// scaler.after(false)?; // the gradients were not finite: nothing is updated
/// assert_eq!((scaler.scale(), scaler.state().skipped), (16384.0, 1));
/// # Ok::<(), epl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    law: Law,
    state: LossScaleState,
}

impl LossScaler {
    /// The scale of a new run, by the options `amp.dtype` and `amp.loss_scale`.
    pub fn new(dtype: HalfDtype, scale: LossScale) -> Self {
        let law = match (dtype, scale) {
            (_, LossScale::Fixed(scale)) => Law::Fixed(scale),
            (HalfDtype::F16, LossScale::Dynamic) => Law::Dynamic,
            (HalfDtype::Bf16, LossScale::Dynamic) => Law::Fixed(1.0),
        };
        let scale = match law {
            Law::Dynamic => START,
            Law::Fixed(scale) => scale,
        };
        Self { law, state: LossScaleState { scale, good_steps: 0, skipped: 0, skipped_in_a_row: 0 } }
    }

    /// Goes on where a run stopped. A fixed scale is that of the options now; the counts go on.
    ///
    /// # Errors
    ///
    /// When the state has a scale that no run has.
    pub fn resumed(mut self, state: LossScaleState) -> Result<Self> {
        if !state.scale.is_finite() || state.scale < LEAST {
            return Err(Error::invalid(format!(
                "the checkpoint has a loss scale of {}, which is not a number from {LEAST}; it is damaged: resume from \
                 another one",
                state.scale
            )));
        }
        self.state = match self.law {
            Law::Dynamic => state,
            Law::Fixed(scale) => LossScaleState { scale, ..state },
        };
        Ok(self)
    }

    /// What the loss of the next step is multiplied by, and its gradients divided by.
    pub fn scale(&self) -> f64 {
        self.state.scale
    }

    /// What a checkpoint keeps.
    pub fn state(&self) -> &LossScaleState {
        &self.state
    }

    /// Goes on to the next step. One whose gradients were not finite on any rank must have been skipped on all.
    ///
    /// # Errors
    ///
    /// When steps are skipped, and no other scale can help.
    pub fn after(&mut self, finite: bool) -> Result<()> {
        match finite {
            true => self.good(),
            false => return self.skipped(),
        }
        Ok(())
    }

    fn good(&mut self) {
        let state = &mut self.state;
        state.skipped_in_a_row = 0;
        state.good_steps += 1;
        if self.law == Law::Dynamic && state.good_steps == GROWTH_STEPS {
            (state.scale, state.good_steps) = (2.0 * state.scale, 0);
        }
    }

    fn skipped(&mut self) -> Result<()> {
        let state = &mut self.state;
        state.good_steps = 0;
        state.skipped += 1;
        state.skipped_in_a_row += 1;
        match self.law {
            Law::Dynamic if state.scale / 2.0 < LEAST => {
                Err(self
                    .stop(&format!("the loss scale has fallen to {}, below {LEAST} it is of no use", self.state.scale)))
            }
            Law::Dynamic => {
                state.scale /= 2.0;
                Ok(())
            }
            Law::Fixed(_) if state.skipped_in_a_row >= MOST_IN_A_ROW => {
                Err(self.stop(&format!("the loss scale stays {}", self.state.scale)))
            }
            Law::Fixed(_) => Ok(()),
        }
    }

    fn stop(&self, why: &str) -> Error {
        let LossScaleState { skipped, skipped_in_a_row, .. } = self.state;
        let remedy = match self.law {
            Law::Fixed(scale) if scale > LEAST => "; or set amp.loss_scale to \"dynamic\" or to a smaller number",
            Law::Dynamic => "; or set amp.dtype = \"bf16\", which has the range of f32",
            Law::Fixed(_) => "",
        };
        Error::invalid(format!(
            "the gradients are not finite: skipped steps in a row {skipped_in_a_row}, in all {skipped}, and {why}. Look for \
             a batch whose loss is not finite, or lower the learning rate{remedy}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dynamic() -> LossScaler {
        LossScaler::new(HalfDtype::F16, LossScale::Dynamic)
    }

    /// The state after good steps (+) and skipped ones (−).
    fn after(mut scaler: LossScaler, runs: &[i64]) -> (f64, u64, u64, u64) {
        for run in runs {
            (0..run.unsigned_abs()).for_each(|_| scaler.after(*run > 0).expect("it goes on"));
        }
        let LossScaleState { scale, good_steps, skipped, skipped_in_a_row } = *scaler.state();
        (scale, good_steps, skipped, skipped_in_a_row)
    }

    #[test]
    fn the_scale_follows_its_law() {
        for (runs, expected) in [
            (&[][..], (32_768.0, 0, 0, 0)),
            (&[1999], (32_768.0, 1999, 0, 0)),
            (&[2000], (65_536.0, 0, 0, 0)),
            (&[4001], (131_072.0, 1, 0, 0)),
            (&[-1], (16_384.0, 0, 1, 1)),
            (&[-3], (4_096.0, 0, 3, 3)),
            // Good steps count in a row.
            (&[1999, -1, 1999], (16_384.0, 1999, 1, 0)),
            (&[1999, -1, 2000], (32_768.0, 0, 1, 0)),
            (&[2000, -1, 5, -1], (16_384.0, 0, 2, 1)),
            (&[-15], (1.0, 0, 15, 15)),
            (&[-15, 4000, -1], (2.0, 0, 16, 1)),
        ] {
            assert_eq!(after(dynamic(), runs), expected, "{runs:?}");
        }
    }

    #[test]
    fn a_fixed_scale_stays() {
        let fixed = |dtype| LossScaler::new(dtype, LossScale::Fixed(512.0));
        for dtype in [HalfDtype::F16, HalfDtype::Bf16] {
            assert_eq!(after(fixed(dtype), &[5000, -15, 1, -15, 3]), (512.0, 3, 30, 0), "{dtype}");
        }
        let bf16 = LossScaler::new(HalfDtype::Bf16, LossScale::Dynamic);
        assert_eq!(after(bf16, &[4000, -15, 2000]), (1.0, 2000, 15, 0));
    }

    #[test]
    fn a_run_that_only_skips_stops_with_its_numbers_and_a_remedy() {
        let stops = |mut scaler: LossScaler, skipped: u64| {
            (1..skipped).for_each(|_| scaler.after(false).expect("not yet"));
            scaler.after(false).expect_err("now").to_string()
        };
        let text = stops(dynamic(), 16);
        assert!(text.contains("in a row 16, in all 16, and the loss scale has fallen to 1"), "{text}");
        assert!(text.contains("bf16"), "{text}");
        let text = stops(LossScaler::new(HalfDtype::F16, LossScale::Fixed(512.0)), 16);
        assert!(text.contains("the loss scale stays 512") && text.contains("\"dynamic\""), "{text}");
        let text = stops(LossScaler::new(HalfDtype::Bf16, LossScale::Dynamic), 16);
        assert!(text.contains("stays 1") && !text.contains("dynamic"), "{text}");
    }

    /// Every other step: the scale falls all the same.
    #[test]
    fn a_run_that_hardly_learns_stops_too() {
        let mut scaler = dynamic();
        for _ in 0..15 {
            scaler.after(false).expect("it goes on");
            scaler.after(true).expect("it goes on");
        }
        let text = scaler.after(false).expect_err("it cannot be halved").to_string();
        assert!(text.contains("in a row 1, in all 16"), "{text}");
    }

    #[test]
    fn a_resumed_run_goes_on() {
        let steps = |scaler: &mut LossScaler, from: u64, to: u64| {
            (from..to).for_each(|step| scaler.after(step % 2100 != 7).expect("it goes on"));
        };
        let (mut whole, mut first) = (dynamic(), dynamic());
        steps(&mut whole, 0, 7000);
        steps(&mut first, 0, 3456);
        let text = serde_json::to_string(first.state()).expect("it is plain");
        let mut second = dynamic().resumed(serde_json::from_str(&text).expect("it is the same")).expect("it is sound");
        assert_eq!(first, second);
        steps(&mut second, 3456, 7000);
        assert_eq!(whole, second);

        let fixed = LossScaler::new(HalfDtype::F16, LossScale::Fixed(8.0)).resumed(whole.state().clone());
        let fixed = fixed.expect("it is sound");
        assert_eq!((fixed.scale(), fixed.state().skipped), (8.0, whole.state().skipped));
        for scale in [0.5, f64::NAN, f64::INFINITY] {
            let state = LossScaleState { scale, ..whole.state().clone() };
            assert!(dynamic().resumed(state).is_err_and(|error| error.to_string().contains(&scale.to_string())));
        }
    }
}
