//! Evaluations of one's own.

use epl_core::testing::run;
use epl_core::{Axis, Engine, TrainerConfig, launch, testing};

use crate::trainer::net::{data, message, trainer, valid};

#[test]
fn two_values_of_one_name_are_refused() {
    let failed = launch(&testing::config(1, 1, 1), |epl| {
        let trainer = trainer(&epl, TrainerConfig::new(1))?.with_valid(valid()).with_valid(valid());
        trainer.fit(&data()).map(|_| ())
    });
    assert!(message(failed).contains("`valid_loss`"));
}

#[test]
fn an_evaluation_may_use_collectives() {
    let sums = run((3, 1, 1), |epl| {
        let mut seen = Vec::new();
        let trainer = trainer(&epl, TrainerConfig::new(2))?.with_evaluation(|engine: &Engine<_>| {
            let data = engine.context().axis(Axis::Data);
            let sum = data.all_reduce_values(&[data.rank() as f64], epl_comm::ReduceOp::Sum)?[0];
            seen.push(sum);
            Ok(vec![("sum".to_string(), sum)])
        });
        let evaluation = trainer.fit(&data())?.summary.evaluation.unwrap();
        Ok(evaluation.get("sum").unwrap())
    });
    assert_eq!(sums, [3.0; 3]);
}
