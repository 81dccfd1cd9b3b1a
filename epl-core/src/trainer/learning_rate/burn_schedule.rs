//! Burn's schedulers, which go from step to step, as functions of the step.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler, ModuleLrSchedulerConfig};
use burn::lr_scheduler::{LrScheduler, LrSchedulerConfig};

use super::LearningRate;
use crate::error::{Error, Result};
use crate::params::ParamRecord;

/// A learning-rate scheduler of Burn's, which goes on behind its end as Burn's does. For a step before the last one that was
/// asked for, and after a resume, it runs again from its beginning: a step is asked for in a time that grows with it.
///
/// ```
/// use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
/// use epl_core::trainer::learning_rate::{BurnLrSchedule, LearningRate};
///
/// let noam = BurnLrSchedule::from_config(NoamLrSchedulerConfig::new(1.0).with_warmup_steps(4).with_model_size(4))?;
/// assert_eq!([3, 15].map(|step| noam.at(step)), [0.25, 0.125]);
/// # Ok::<_, epl_core::Error>(())
/// ```
pub struct BurnLrSchedule {
    /// Before its first step.
    initial: ModuleLrScheduler,
    /// Whether it has groups.
    has_groups: bool,
    position: Mutex<Position>,
}

struct Position {
    scheduler: ModuleLrScheduler,
    /// Steps that were taken, and the rates of the last one.
    taken: u64,
    rates: ModuleLearningRate,
}

impl Position {
    fn before(scheduler: ModuleLrScheduler) -> Self {
        Self { scheduler, taken: 0, rates: ModuleLearningRate::default() }
    }
}

impl fmt::Debug for BurnLrSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BurnLrSchedule").finish_non_exhaustive()
    }
}

impl BurnLrSchedule {
    /// A scheduler that implements Burn's trait, such as one of one's own.
    pub fn new(scheduler: impl LrScheduler + 'static) -> Self {
        Self::of(ModuleLrScheduler::new(scheduler), false)
    }

    /// The scheduler of one of Burn's configurations.
    ///
    /// # Errors
    ///
    /// When Burn refuses the configuration.
    pub fn from_config(config: impl Into<LrSchedulerConfig>) -> Result<Self> {
        let scheduler = ModuleLrSchedulerConfig::new(config.into()).init();
        let scheduler =
            scheduler.map_err(|reason| Error::invalid(format!("a learning-rate scheduler of Burn: {reason}")))?;
        Ok(Self::of(scheduler, false))
    }

    /// A scheduler of Burn with groups of parameters, each of which has a schedule of its own: by path (`ParamGroup::from_path`,
    /// `from_predicate`), or by the identifiers that a plan gives them ([`ParamRecord::id`]), which are not those of the model
    /// before it is built. What is shown and logged is the base rate. The rate factor of a parameter group of the optimizer
    /// multiplies the rate of either.
    ///
    /// ```
    /// use burn::lr_scheduler::module_lr_scheduler::ModuleLrSchedulerConfig;
    /// use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
    /// use burn::module::ParamGroup;
    /// use epl_core::trainer::learning_rate::BurnLrSchedule;
    ///
    /// let groups = ModuleLrSchedulerConfig::new(LinearLrSchedulerConfig::new(1e-3, 1e-5, 1000).into())
    ///     .with_group(ParamGroup::from_predicate("head"), 1e-2);
    /// let rate = BurnLrSchedule::from_module(groups.init()?);
    /// # let _ = rate;
    /// # Ok::<_, String>(())
    /// ```
    pub fn from_module(scheduler: ModuleLrScheduler) -> Self {
        Self::of(scheduler, true)
    }

    fn of(initial: ModuleLrScheduler, has_groups: bool) -> Self {
        Self { position: Mutex::new(Position::before(initial.clone())), initial, has_groups }
    }

    /// What `read` finds in the rates of a step.
    fn rates<T>(&self, step: u64, read: impl FnOnce(&ModuleLearningRate) -> T) -> T {
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        if step.saturating_add(1) < position.taken {
            *position = Position::before(self.initial.clone());
        }
        while position.taken <= step {
            position.rates = position.scheduler.step();
            position.taken += 1;
        }
        read(&position.rates)
    }
}

impl LearningRate for BurnLrSchedule {
    fn at(&self, step: u64) -> f64 {
        self.rates(step, ModuleLearningRate::base)
    }

    fn of_parameters(&self, step: u64, parameters: &[ParamRecord]) -> Option<Vec<f64>> {
        let rate =
            |rates: &ModuleLearningRate, record: &ParamRecord| rates.lr_from_param(record.id, Some(&record.name));
        let all = |rates: &ModuleLearningRate| parameters.iter().map(|record| rate(rates, record)).collect();
        self.has_groups.then(|| self.rates(step, all))
    }
}

#[cfg(test)]
mod tests {
    use burn::lr_scheduler::LrSchedulerRecord;
    use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
    use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
    use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
    use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
    use burn::lr_scheduler::step::StepLrSchedulerConfig;

    use super::super::{Decay, LrSchedule};
    use super::*;

    /// Whether both are the same in some order of steps.
    fn assert_alike(config: impl Into<LrSchedulerConfig>, own: &LrSchedule) {
        let burn = BurnLrSchedule::from_config(config).unwrap();
        for step in [0, 1, 2, 7, 7, 3, 0, 19, 20] {
            let (theirs, ours) = (burn.at(step), own.at(step));
            assert!((theirs - ours).abs() < 1e-12, "step {step}: Burn {theirs}, {own:?} {ours}");
        }
    }

    #[test]
    fn our_shapes_are_burns_where_burn_has_them() {
        assert_alike(
            LinearLrSchedulerConfig::new(0.5, 0.1, 20),
            &LrSchedule::new(0.5, Decay::Linear { steps: 20 }).with_min_rate(0.1),
        );
        let cosine = CosineAnnealingLrSchedulerConfig::new(0.5, 20).with_min_lr(0.1);
        assert_alike(cosine, &LrSchedule::new(0.5, Decay::Cosine { steps: 20 }).with_min_rate(0.1));
        assert_alike(
            ExponentialLrSchedulerConfig::new(0.5, 0.9),
            &LrSchedule::new(0.5, Decay::Exponential { gamma: 0.9 }),
        );
        let step = StepLrSchedulerConfig::new(0.5, 3).with_gamma(0.5);
        assert_alike(step, &LrSchedule::new(0.5, Decay::Step { every: 3, gamma: 0.5 }));
        let noam = NoamLrSchedulerConfig::new(2.0).with_warmup_steps(5).with_model_size(64);
        assert_alike(noam, &LrSchedule::new(2.0, Decay::Noam { model_size: 64 }).with_warmup(5));
    }

    /// Halves the rate in every step.
    #[derive(Clone)]
    struct Halving(f64);

    impl LrScheduler for Halving {
        fn step(&mut self) -> f64 {
            self.0 /= 2.0;
            self.0
        }

        fn to_record(&self) -> LrSchedulerRecord {
            LrSchedulerRecord::new()
        }

        fn load_record(&mut self, _record: LrSchedulerRecord) {}
    }

    #[test]
    fn a_scheduler_of_ones_own_is_asked_once_a_step() {
        let rate = BurnLrSchedule::new(Halving(1.0));
        assert_eq!([0, 1, 1, 4, 2, 0].map(|step| rate.at(step)), [0.5, 0.25, 0.25, 0.03125, 0.125, 0.5]);
    }

    #[test]
    fn what_burn_refuses_is_told() {
        let error = BurnLrSchedule::from_config(LinearLrSchedulerConfig::new(2.0, 0.1, 20)).unwrap_err();
        assert!(error.to_string().contains("Initial learning rate must be greater than 0 and at most 1"), "{error}");
    }
}
