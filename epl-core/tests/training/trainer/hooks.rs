//! Hooks are called in order, and can do what the trainer's own do; what asks a run to stop stops it.

use std::fs;
use std::sync::Mutex;

use epl_core::evaluate::Values;
use epl_core::testing::run;
use epl_core::trainer::{Evaluation, Hook, Run, StepRecord};
use epl_core::{Model, Result, StopHandle, TrainerConfig};
use tempfile::tempdir;

use crate::trainer::net::{config, data, lines, trainer, valid};

/// Writes down what it is told; asks for a stop after one step.
struct Diary<'a> {
    entries: &'a Mutex<Vec<String>>,
    stop: Option<(u64, StopHandle)>,
}

impl Diary<'_> {
    fn note(&self, what: &str, step: u64) -> Result<()> {
        self.entries.lock().unwrap().push(format!("{what} {step}"));
        Ok(())
    }
}

impl<M: Model> Hook<M> for Diary<'_> {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.note("before_run", run.step())
    }

    fn before_step(&mut self, run: &mut Run<M>) -> Result<()> {
        self.note("before_step", run.step())
    }

    fn after_step(&mut self, _run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        if let Some((_, stop)) = self.stop.as_ref().filter(|(step, _)| *step == record.step) {
            stop.request();
        }
        self.note("after_step", record.step)
    }

    fn between_steps(&mut self, run: &mut Run<M>) -> Result<()> {
        self.note("between_steps", run.step())
    }

    fn before_save(&mut self, run: &mut Run<M>) -> Result<()> {
        self.note("before_save", run.step())
    }

    fn save(&mut self, run: &mut Run<M>) -> Result<()> {
        self.note("save", run.step())
    }

    fn after_save(&mut self, run: &mut Run<M>) -> Result<()> {
        self.note("after_save", run.saved_at().unwrap())
    }

    fn before_evaluation(&mut self, run: &mut Run<M>) -> Result<()> {
        self.note("before_evaluation", run.step())
    }

    fn evaluate(&mut self, run: &mut Run<M>) -> Result<Values> {
        self.note("evaluate", run.step())?;
        Ok(vec![("steps".to_string(), run.step() as f64)])
    }

    fn after_evaluation(&mut self, _run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        assert_eq!(evaluation.get("steps"), Some(evaluation.step as f64));
        assert!(evaluation.get("valid_loss").is_some());
        self.note("after_evaluation", evaluation.step)
    }

    fn after_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.note("after_run", run.step())
    }
}

#[test]
fn hooks_are_called_in_order() {
    let folder = tempdir().unwrap();
    let entries = Mutex::new(Vec::new());
    run((1, 1, 1), |epl| {
        let config = config(folder.path(), 2).with_eval_every(Some(1)).with_save_every(None);
        let diary = Diary { entries: &entries, stop: None };
        trainer(&epl, config)?.with_valid(valid()).with_hook(diary).fit(&data()).map(|_| ())
    });
    let expected = [
        "before_run 0",
        "before_step 0",
        "after_step 1",
        "between_steps 1",
        "before_evaluation 1",
        "evaluate 1",
        "after_evaluation 1",
        "before_step 1",
        "after_step 2",
        "between_steps 2",
        // Saved first: an evaluation that fails loses nothing.
        "before_save 2",
        "save 2",
        "after_save 2",
        "before_evaluation 2",
        "evaluate 2",
        "after_evaluation 2",
        "after_run 2",
    ];
    assert_eq!(*entries.lock().unwrap(), expected);
}

#[test]
fn a_stop_on_one_rank_ends_all_after_the_same_step() {
    let folder = tempdir().unwrap();
    let entries = Mutex::new(Vec::new());
    let ends = run((3, 1, 1), |epl| {
        let stop = StopHandle::new();
        // Only the last rank asks.
        let asks = (epl.context().world().rank() == 2).then(|| (5, stop.clone()));
        let diary = Diary { entries: &entries, stop: asks };
        let trainer = trainer(&epl, config(folder.path(), 20))?.with_valid(valid());
        let trained = trainer.with_stop(stop).with_hook(diary).fit(&data())?;
        Ok((trained.summary.steps, trained.summary.position, trained.summary.stopped))
    });
    assert_eq!(ends, [(5, 25, true); 3]);
    assert_eq!(fs::read_to_string(folder.path().join("checkpoints/latest")).unwrap(), "step-5\n");
    assert!(lines(folder.path())[4]["valid_loss"].is_f64(), "a stopped run is evaluated");
}

/// Ends a run after a number of steps, of which it keeps count in the checkpoints; asked for by one rank alone.
struct Budget {
    left: u64,
}

impl<M: Model> Hook<M> for Budget {
    fn before_run(&mut self, run: &mut Run<M>) -> Result<()> {
        self.left = run.kept("budget").and_then(|left| left.as_u64()).unwrap_or(self.left);
        Ok(())
    }

    fn after_step(&mut self, run: &mut Run<M>, _record: &StepRecord) -> Result<()> {
        self.left -= 1;
        if self.left == 0 && run.context().world().rank() == 1 {
            run.request_end();
        }
        run.keep("budget", &self.left)
    }
}

#[test]
fn what_a_hook_keeps_is_there_after_a_resume() {
    let folder = tempdir().unwrap();
    let train = |steps: u64, resume: bool| {
        let ends = run((2, 1, 1), |epl| {
            let config = config(folder.path(), steps).with_eval_every(None).with_resume(resume);
            let trained = trainer(&epl, config)?.with_hook(Budget { left: 7 }).fit(&data())?;
            Ok((trained.summary.steps, trained.summary.stopped))
        });
        ends[0]
    };
    assert_eq!(train(3, false), (3, false));
    // Three of the seven are spent.
    assert_eq!(train(20, true), (7, true));
    assert_eq!(fs::read_to_string(folder.path().join("checkpoints/latest")).unwrap(), "step-7\n");
}

/// Saves and evaluates when it likes, with what every hook may use.
struct Whim<'a>(&'a Mutex<Vec<(u64, f64)>>);

impl<M: Model> Hook<M> for Whim<'_> {
    fn between_steps(&mut self, run: &mut Run<M>) -> Result<()> {
        if run.step() == 3 {
            run.request_save();
            run.request_evaluation();
        }
        Ok(())
    }

    fn after_evaluation(&mut self, run: &mut Run<M>, evaluation: &Evaluation) -> Result<()> {
        if run.is_first_rank() {
            self.0.lock().unwrap().push((evaluation.step, evaluation.get("valid_loss").unwrap()));
        }
        Ok(())
    }
}

#[test]
fn a_hook_may_ask_for_a_checkpoint_and_an_evaluation() {
    let folder = tempdir().unwrap();
    let seen = Mutex::new(Vec::new());
    run((2, 1, 1), |epl| {
        let config = TrainerConfig::new(5).with_out(Some(folder.path().into()));
        trainer(&epl, config)?.with_valid(valid()).with_hook(Whim(&seen)).fit(&data()).map(|_| ())
    });
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [3, 5]);
    assert!(folder.path().join("checkpoints/step-3/evaluation.json").exists());
    assert_eq!(lines(folder.path())[2]["valid_loss"].as_f64(), Some(seen[0].1));
}

/// Asks for the end at once after a step, on the last rank.
struct Interrupt(u64);

impl<M: Model> Hook<M> for Interrupt {
    fn after_step(&mut self, run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        if record.step == self.0 && run.context().world().rank() + 1 == run.context().world().size() {
            run.request_interruption();
        }
        Ok(())
    }
}

#[test]
fn an_interrupted_run_is_saved_and_leaves_its_evaluation_to_the_run_that_goes_on() {
    let (whole, parts) = (tempdir().unwrap(), tempdir().unwrap());
    let fit = |out: &std::path::Path, at: u64, resume: bool| {
        run((2, 1, 1), |epl| {
            let trainer = trainer(&epl, config(out, 10).with_resume(resume))?.with_valid(valid());
            Ok(trainer.with_hook(Interrupt(at)).fit(&data())?.summary)
        })
    };
    fit(whole.path(), 0, false);
    // After step 4 an evaluation is due, after step 7 nothing is, and after step 10 the run is over anyway.
    for (at, resume) in [(4, false), (7, true), (10, true)] {
        let ends = fit(parts.path(), at, resume);
        assert!(ends.iter().all(|end| (end.steps, end.interrupted, end.stopped) == (at, true, at < 10)));
        assert!(lines(parts.path()).last().unwrap().get("valid_loss").is_none());
    }
    assert!(!fit(parts.path(), 0, true)[0].interrupted);
    for key in ["step", "loss", "grad_norm", "valid_loss"] {
        let of = |out| lines(out).iter().map(|line| line.get(key).cloned()).collect::<Vec<_>>();
        assert_eq!(of(parts.path()), of(whole.path()), "{key}");
    }
}
