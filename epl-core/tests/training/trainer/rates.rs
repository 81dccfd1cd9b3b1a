//! Learning rates that a program gives the trainer itself.

use std::collections::BTreeMap;
use std::sync::Mutex;

use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrSchedulerConfig;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::module::ParamGroup;
use burn::tensor::TensorData;
use epl_core::config::ConfigError;
use epl_core::optim::{OptimizerConfig, ParamGroups};
use epl_core::trainer::{Hook, Run, StepRecord};
use epl_core::{
    BurnLrSchedule, Config, Decay, LearningRate, LrSchedule, Model, Result, SequentialLr, Trainer, launch, testing,
};

use crate::trainer::net::{Net, data, message, optimizer};

/// Keeps the rate of every step.
struct Rates<'a>(&'a Mutex<Vec<f64>>);

impl<M: Model> Hook<M> for Rates<'_> {
    fn after_step(&mut self, _run: &mut Run<M>, record: &StepRecord) -> Result<()> {
        self.0.lock().unwrap().push(record.rate);
        Ok(())
    }
}

/// The rates of three steps, with such a configuration of the schedule.
fn rates(
    given: impl Fn(Config) -> Result<Config, ConfigError>,
    own: impl Fn() -> Box<dyn LearningRate> + Sync,
) -> Result<Vec<f64>> {
    let config = given(testing::config(1, 1, 1).with("train.steps", 3)?)?;
    let all = launch(&config, |epl| {
        let rates = Mutex::new(Vec::new());
        let trainer = Trainer::build(&epl, Net::new, &optimizer())?.with_learning_rate(own()).quiet();
        trainer.with_hook(Rates(&rates)).fit(&data())?;
        Ok::<_, epl_core::Error>(rates.into_inner().unwrap())
    });
    all.map(|mut all| all.swap_remove(0))
}

#[test]
fn a_program_gives_any_function_of_the_step() {
    assert_eq!(rates(Ok, || Box::new(|step| 0.1 / (step as f64 + 1.0))).unwrap(), [0.1, 0.05, 0.1 / 3.0]);
    let burn = || NoamLrSchedulerConfig::new(0.5).with_warmup_steps(1).with_model_size(4);
    let noam = rates(Ok, || Box::new(BurnLrSchedule::from_config(burn()).unwrap())).unwrap();
    assert_eq!(noam, [0.25, 0.25 * 2_f64.powf(-0.5), 0.25 * 3_f64.powf(-0.5)]);
    let constant = |rate| LrSchedule::new(rate, Decay::Constant);
    assert_eq!(
        rates(Ok, || Box::new(SequentialLr::new(constant(0.1)).then(2, constant(0.01)))).unwrap(),
        [0.1, 0.1, 0.01]
    );
}

/// The parameters after some steps.
fn trained<O: OptimizerConfig + Sync>(
    given: &[(&str, &str)],
    optimizer: &O,
    rate: impl Fn() -> Box<dyn LearningRate> + Sync,
) -> BTreeMap<String, TensorData> {
    let config = testing::config(2, 1, 1).with("train.steps", 5).unwrap();
    let config = given.iter().fold(config, |config, (key, value)| config.with(key, *value).unwrap());
    let all = launch(&config, |epl| {
        let trainer = Trainer::build(&epl, Net::new, optimizer)?.with_learning_rate(rate()).quiet();
        trainer.fit(&data())?.engine.parameters()
    });
    all.unwrap().swap_remove(0)
}

/// A group whose rate is half of the base's in all steps is one whose factor is a half, to the bit.
#[test]
fn the_groups_of_burns_scheduler_have_rates_of_their_own() {
    let linear = |rate| LinearLrSchedulerConfig::new(rate, 0.5 * rate, 4);
    let base = || ModuleLrSchedulerConfig::new(linear(0.1).into());
    let burns = |config: ModuleLrSchedulerConfig| -> Box<dyn LearningRate> {
        Box::new(SequentialLr::new(BurnLrSchedule::from_module(config.init().unwrap())))
    };
    let grouped = || burns(base().with_group(ParamGroup::from_predicate("down"), linear(0.05)));
    let halved = ParamGroups::new(optimizer()).group(["down"], |group| group.with_rate_factor(0.5));
    for given in [&[][..], &[("zero.level", "v2")], &[("offload.optimizer_state", "host")]] {
        let found = trained(given, &optimizer(), grouped);
        assert_eq!(found, trained(given, &halved, || burns(base())), "{given:?}");
        assert_ne!(found, trained(given, &optimizer(), || burns(base())), "{given:?}");
    }
}

#[test]
fn a_rate_below_zero_of_a_group_ends_the_run_in_its_step() {
    let falling =
        || ModuleLrSchedulerConfig::new(0.1.into()).init().unwrap().with_group(ParamGroup::from_path("up.bias"), -0.5);
    let text = message(rates(Ok, || Box::new(BurnLrSchedule::from_module(falling()))).map(|_| ()));
    assert!(text.contains("learning rate -0.5 at step 1; give a finite number of at least 0"), "{text}");
}

#[test]
fn options_of_a_rate_that_is_replaced_are_refused() {
    let own = || -> Box<dyn LearningRate> { Box::new(|_| 0.1) };
    assert_eq!(rates(|config| config.with("schedule.steps", 9), own).unwrap(), [0.1; 3]);
    let text = message(rates(|config| config.with("schedule.rate", 0.5), own));
    assert!(text.contains("schedule.rate = 0.5"), "{text}");
    assert!(text.contains("this program gives the trainer one of its own"), "{text}");
}

#[test]
fn a_rate_below_zero_ends_the_run_in_its_step() {
    let text = message(rates(Ok, || Box::new(|step| 0.1 - 0.1 * step as f64)).map(|_| ()));
    assert!(text.contains("learning rate -0.1 at step 3; give a finite number of at least 0"), "{text}");
}
