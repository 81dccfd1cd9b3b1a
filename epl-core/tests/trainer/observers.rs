//! What watches a run is told in order; what asks a run to stop stops it.

use std::fs;
use std::sync::Mutex;

use epl_core::testing::run;
use epl_core::trainer::{Begin, Evaluation, Observer, StepRecord, Summary};
use epl_core::{Result, Stop};
use tempfile::tempdir;

use crate::net::{config, data, lines, trainer, valid};

/// Writes down what it is told; asks for a stop after one step.
struct Diary<'a> {
    entries: &'a Mutex<Vec<String>>,
    stop: Option<(u64, Stop)>,
}

impl Diary<'_> {
    fn note(&self, what: &str, step: u64) -> Result<()> {
        self.entries.lock().unwrap().push(format!("{what} {step}"));
        Ok(())
    }
}

impl Observer for Diary<'_> {
    fn begin(&mut self, begin: &Begin) -> Result<()> {
        self.note("begin", begin.done)
    }

    fn before_step(&mut self, step: u64) -> Result<()> {
        self.note("before_step", step)
    }

    fn after_step(&mut self, record: &StepRecord) -> Result<()> {
        if let Some((_, stop)) = self.stop.as_ref().filter(|(step, _)| *step == record.step) {
            stop.request();
        }
        self.note("after_step", record.step)
    }

    fn before_evaluation(&mut self, step: u64) -> Result<()> {
        self.note("before_evaluation", step)
    }

    fn after_evaluation(&mut self, evaluation: &Evaluation) -> Result<()> {
        self.note("after_evaluation", evaluation.step)
    }

    fn before_save(&mut self, step: u64) -> Result<()> {
        self.note("before_save", step)
    }

    fn end(&mut self, summary: &Summary) -> Result<()> {
        self.note("end", summary.steps)
    }
}

#[test]
fn observers_are_told_in_order() {
    let folder = tempdir().unwrap();
    let entries = Mutex::new(Vec::new());
    run((1, 1, 1), |epl| {
        let config = config(folder.path(), 2).with_eval_every(Some(1)).with_save_every(None);
        let diary = Diary { entries: &entries, stop: None };
        trainer(&epl, config)?.with_valid(valid()).with_observer(diary).fit(&data()).map(|_| ())
    });
    let expected = [
        "begin 0",
        "before_step 1",
        "after_step 1",
        "before_evaluation 1",
        "after_evaluation 1",
        "before_step 2",
        "after_step 2",
        // Saved first: an evaluation that fails loses nothing.
        "before_save 2",
        "before_evaluation 2",
        "after_evaluation 2",
        "end 2",
    ];
    assert_eq!(*entries.lock().unwrap(), expected);
}

#[test]
fn a_stop_on_one_rank_ends_all_after_the_same_step() {
    let folder = tempdir().unwrap();
    let entries = Mutex::new(Vec::new());
    let ends = run((3, 1, 1), |epl| {
        let stop = Stop::new();
        // Only the last rank asks.
        let asks = (epl.context().world().rank() == 2).then(|| (5, stop.clone()));
        let diary = Diary { entries: &entries, stop: asks };
        let trainer = trainer(&epl, config(folder.path(), 20))?.with_valid(valid());
        let trained = trainer.with_stop(stop).with_observer(diary).fit(&data())?;
        Ok((trained.summary.steps, trained.summary.position, trained.summary.stopped))
    });
    assert_eq!(ends, [(5, 25, true); 3]);
    assert_eq!(fs::read_to_string(folder.path().join("checkpoints/latest")).unwrap(), "step-5\n");
    assert!(lines(folder.path())[4]["valid_loss"].is_f64(), "a stopped run is evaluated");
}
