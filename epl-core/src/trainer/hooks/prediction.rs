//! Holds a predicted step against those of the run.

use crate::error::{Error, Result};
use crate::model::segment::Model;
use crate::trainer::hook::Hook;
use crate::trainer::record::StepRecord;
use crate::trainer::run::Run;

/// Steps that do not count: caches, pools and helper threads are made in them.
const WARM_UP: u64 = 10;
/// Steps that do.
const COUNTED: usize = 10;
/// A prediction that is further off is told, as a part of it.
const FAR: f64 = 0.1;

/// Warns, once, where steps take 10 % more or less than predicted, such as by
/// [`Choice::seconds`](crate::search::Choice::seconds): ten steps behind the first ten, without waiting for data.
#[derive(Clone, Debug)]
pub struct CheckPrediction {
    seconds: f64,
    took: Vec<f64>,
}

impl CheckPrediction {
    /// Of steps that are predicted to take so long.
    pub fn new(seconds: f64) -> Self {
        Self { seconds, took: Vec::new() }
    }

    /// Hears of a step; says once what is to be told, if anything is.
    fn hear(&mut self, seconds: f64) -> Result<()> {
        if self.took.len() == COUNTED {
            return Ok(());
        }
        self.took.push(seconds);
        if self.took.len() < COUNTED {
            return Ok(());
        }
        self.took.sort_by(f64::total_cmp);
        let (took, predicted) = (self.took[COUNTED / 2], self.seconds);
        let off = took / predicted - 1.0;
        if off.abs() <= FAR {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a step takes {:.1} ms (the median of {COUNTED}), and {:.1} ms were predicted, {:+.0} %: what was measured may be out of \
             date, if auto.calibration names a file; auto.measure = 3 runs the best layouts before it chooses",
            took * 1e3,
            predicted * 1e3,
            off * 100.0
        )))
    }
}

impl<M: Model> Hook<M> for CheckPrediction {
    fn after_step(&mut self, run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        if run.step() > run.begun_at() + WARM_UP {
            let told = self.hear((record.time - record.data_wait.min(record.time)).as_secs_f64());
            run.forgive(told);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_far_off_is_told_once() {
        let told = |seconds: f64| {
            let mut check = CheckPrediction::new(0.05);
            let told = (0..30).map(|_| check.hear(seconds)).filter_map(Result::err);
            told.map(|error| error.to_string()).collect::<Vec<_>>()
        };
        assert!(told(0.054).is_empty() && told(0.046).is_empty());
        assert_eq!(told(0.07).len(), 1);
        assert!(told(0.07)[0].contains("takes 70.0 ms") && told(0.07)[0].contains("+40 %"), "{:?}", told(0.07));
        assert!(told(0.025)[0].contains("-50 %"));
    }
}
