//! The loss as a picture.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::Result;
use crate::model::segment::Model;
use crate::trainer::hook::Hook;
use crate::trainer::json_lines;
use crate::trainer::plot::{CurveLine, draw};
use crate::trainer::record::{Evaluation, StepRecord};
use crate::trainer::run::Run;

/// Draws the loss on the training data and, where it was evaluated, on the validation data, over the steps.
///
/// It is drawn after every evaluation and at the end.
#[derive(Debug)]
pub struct Curve {
    path: PathBuf,
    history: Option<PathBuf>,
    train: CurveLine,
    valid: CurveLine,
}

impl Curve {
    /// A curve in this SVG file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), history: None, train: CurveLine::new(), valid: CurveLine::new() }
    }

    /// The `metrics.jsonl` from which a resumed run reads the steps that were done before.
    #[must_use]
    pub fn with_history(mut self, path: impl Into<PathBuf>) -> Self {
        self.history = Some(path.into());
        self
    }

    /// Begins anew; of a run that was resumed after `done` steps, with those.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    pub fn open(&mut self, done: u64) -> Result<()> {
        (self.train, self.valid) = (CurveLine::new(), CurveLine::new());
        match self.history.clone() {
            Some(history) if done > 0 => self.read(&history, done),
            _ => Ok(()),
        }
    }

    fn read(&mut self, history: &Path, done: u64) -> Result<()> {
        for line in json_lines::read(history)? {
            let number = |key| line.get(key).and_then(Value::as_f64);
            let Some(step) = number("step").filter(|step| *step <= done as f64) else { continue };
            number("loss").into_iter().for_each(|loss| self.train.push(step, loss));
            number("valid_loss").into_iter().for_each(|loss| self.valid.push(step, loss));
        }
        Ok(())
    }

    /// Takes the loss of a step.
    pub fn add_step(&mut self, record: &StepRecord) {
        self.train.push(record.step as f64, record.report.loss);
    }

    /// Takes the loss on the validation data, if it was measured.
    pub fn add_evaluation(&mut self, evaluation: &Evaluation) {
        let loss = evaluation.get("valid_loss");
        loss.into_iter().for_each(|loss| self.valid.push(evaluation.step as f64, loss));
    }

    /// Draws what there is; nothing, if there is nothing.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn draw(&self) -> Result<()> {
        draw(&self.path, "loss", &[("train", 1, &self.train), ("valid", 2, &self.valid)])
    }
}

impl<M: Model> Hook<M> for Curve {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.open(run.step())
    }

    fn after_step(&mut self, _run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        self.add_step(record);
        Ok(())
    }

    fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        self.add_evaluation(evaluation);
        run.forgive(self.draw());
        Ok(())
    }

    fn after_run(&mut self, run: &mut Run<M>) -> Result<()> {
        // It can be drawn again from the log.
        run.forgive(self.draw());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::hooks::MetricsLog;
    use crate::trainer::record::tests::{evaluation, record};

    #[test]
    fn a_run_is_drawn_with_both_losses() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss.svg");
        let mut curve = Curve::new(&path);
        curve.open(0).unwrap();
        (1..=3000).for_each(|step| curve.add_step(&record(step)));
        [1500, 3000].iter().for_each(|step| curve.add_evaluation(&evaluation(*step)));
        curve.draw().unwrap();
        let picture = std::fs::read_to_string(&path).unwrap();
        for part in ["<svg", "train", "valid", "polyline", "</svg>"] {
            assert!(picture.contains(part), "{part}");
        }
        assert!(picture.len() < 60_000, "{} bytes", picture.len());
    }

    #[test]
    fn a_resumed_curve_has_the_steps_before() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = folder.path().join("metrics.jsonl");
        let mut log = MetricsLog::new(&metrics);
        log.open(0).unwrap();
        for step in 1..=5 {
            log.flush().unwrap();
            log.add_step(&record(step));
            log.add_evaluation(&evaluation(step)).unwrap();
        }
        drop(log);
        let mut curve = Curve::new(folder.path().join("loss.svg")).with_history(&metrics);
        curve.open(4).unwrap();
        assert_eq!(curve.train.points, (1..=4).map(|step| (step as f64, record(step).report.loss)).collect::<Vec<_>>());
        assert_eq!(curve.valid.points.len(), 4);
    }

    #[test]
    fn nothing_to_draw_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("loss.svg");
        Curve::new(&path).draw().unwrap();
        assert!(!path.exists());
    }
}
