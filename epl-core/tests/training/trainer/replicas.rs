//! Replicas that drift apart are found.

use epl_core::trainer::learning_rate::{Decay, LrSchedule};
use epl_core::{Engine, EngineSettings, Trainer, TrainerConfig, launch, testing};

use crate::trainer::net::{Net, data, message, optimizer};

/// A run of three steps on three ranks; the last one has a learning rate of its own.
fn with_another_rate(check_every: Option<u64>) -> epl_core::Result<Vec<u64>> {
    launch(&testing::config(3, 1, 1), |epl| {
        let engine = Engine::new(epl.build(Net::new)?, &optimizer(), EngineSettings::default())?;
        let rate = if epl.context().world().rank() == 2 { 0.02 } else { 0.01 };
        let config = TrainerConfig::new(3).with_check_replicas_every(check_every);
        let trainer = Trainer::new(engine, config, LrSchedule::new(rate, Decay::Constant)).quiet();
        Ok(trainer.fit(&data())?.summary.steps)
    })
}

#[test]
fn a_rank_with_another_rate_is_found_where_it_is_asked_for() {
    assert_eq!(with_another_rate(None).unwrap(), [3, 3, 3]);
    // Before the last step is saved, too.
    assert!(message(with_another_rate(Some(4))).contains("its copies are not equal after step 3"));
    let text = message(with_another_rate(Some(2)));
    assert!(text.contains("parameter `up.weight`: its copies are not equal after step 2"), "{text}");
    assert!(text.contains("rank 2 differs from rank 0"), "{text}");
}

#[test]
fn equal_replicas_pass() {
    let steps = testing::run((2, 1, 2), |epl| {
        let trainer = crate::trainer::net::trainer(&epl, TrainerConfig::new(4).with_check_replicas_every(Some(1)))?;
        Ok(trainer.fit(&data())?.summary.steps)
    });
    assert_eq!(steps, [4, 4]);
}
