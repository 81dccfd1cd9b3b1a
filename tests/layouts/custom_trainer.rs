//! A loop written by hand gives the trainer's losses, to the bit.

// Its own `main` is not called here.
#[allow(dead_code)]
#[path = "../../examples/custom_trainer.rs"]
mod example;

use std::sync::Mutex;

use epl::prelude::*;
use epl::trainer::{Hook, Run, StepRecord};

const STEPS: u64 = 20;

/// Keeps the losses.
struct Losses<'a>(&'a Mutex<Vec<f64>>);

impl<M: Model> Hook<M> for Losses<'_> {
    fn after_step(&mut self, _run: &mut Run<M>, record: &StepRecord) -> epl::Result<()> {
        self.0.lock().expect("no rank panicked").push(record.report.loss);
        Ok(())
    }
}

fn by_trainer(epl: &Epl) -> epl::Result<Vec<f64>> {
    let rate = LrSchedule::from_config(&epl.config().schedule)?;
    let losses = Mutex::new(Vec::new());
    let config = TrainerConfig::new(STEPS).with_micro_batches(epl.config().pipeline.num_micro_batch);
    Trainer::new(example::engine(epl)?, config, rate)
        .with_hook(Losses(&losses))
        .quiet()
        .fit(&example::data(epl.config().train.seed)?)?;
    Ok(losses.into_inner().expect("no rank panicked"))
}

#[test]
fn a_loop_written_by_hand_equals_the_trainer_to_the_bit() -> epl::Result<()> {
    let config = example::config()?;
    let by_hand = epl::launch(&config, |epl| example::by_hand(&epl, STEPS))?;
    let by_trainer = epl::launch(&config, |epl| by_trainer(&epl))?;
    assert_eq!(by_hand[0].len() as u64, STEPS);
    assert_eq!(by_hand, by_trainer);
    Ok(())
}

/// The example is short because the public API is enough.
#[test]
fn the_loop_has_less_than_80_lines() {
    assert!(include_str!("../../examples/custom_trainer.rs").lines().count() < 80);
}
