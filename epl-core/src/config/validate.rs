//! What a configuration must agree on with itself. What depends on the ranks that exist is checked
//! where they are known: [`Config::batch`] and [`cluster`](crate::cluster).

use super::choice::{AmpLevel, OffloadLevel, ScheduleKind, StateTier};
use super::error::{ConfigError, Result};
use super::sections::{Config, OPTIONS, OffloadConfig, ScheduleConfig};

/// A setting, what must be on for it to have an effect, and whether that is.
type Detail = (&'static str, &'static str, fn(&Config) -> bool);

const DETAILS: &[Detail] = &[
    ("amp.dtype", "amp.level = O1", in_half),
    ("amp.loss_scale", "amp.level = O1", in_half),
    ("amp.debug_log", "amp.level = O1", in_half),
    ("offload.folder", "state in files (offload.level = v1, or a tier of file)", in_files),
    ("offload.resident_bytes", "state in files (offload.level = v1, or a tier of file)", in_files),
    ("io.unbalanced_io_slicing", "io.slicing = true", sliced),
    ("io.drop_last_files", "io.slicing = true", sliced),
];

fn in_half(config: &Config) -> bool {
    config.amp.level == AmpLevel::O1
}

fn sliced(config: &Config) -> bool {
    config.io.slicing
}

fn in_files(config: &Config) -> bool {
    let OffloadConfig { level, parameters, gradients, optimizer_state, .. } = &config.offload;
    *level == OffloadLevel::V1 || [parameters, gradients, optimizer_state].contains(&&Some(StateTier::File))
}

impl Config {
    /// Checks every option, then what options say together.
    ///
    /// # Errors
    ///
    /// The first value that is not allowed or not implemented yet, in the order of the table; then
    /// the first disagreement.
    pub fn validate(&self) -> Result<()> {
        OPTIONS.iter().try_for_each(|option| self.check(option))?;
        DETAILS.iter().try_for_each(|detail| self.check_detail(detail))?;
        self.check_stages()?;
        self.schedule.validate()
    }

    /// The pipeline stages of a replica: `dist.pipeline_parallel_size`, or with `auto.auto_parallel` the number
    /// `pipeline.num_stages`. Scopes in a model may make others.
    pub fn stages(&self) -> usize {
        self.pipeline.num_stages.filter(|_| self.auto.auto_parallel).unwrap_or(self.dist.pipeline_parallel_size)
    }

    /// A value other than the default must do something. The default may stand in a file: saved configurations have all.
    fn check_detail(&self, &(key, needs, is_on): &Detail) -> Result<()> {
        let (value, default) = (self.get(key), Self::default().get(key));
        match value.filter(|value| Some(value) != default.as_ref() && !is_on(self)) {
            Some(value) => {
                Err(ConfigError::NoEffect { key, given: value.to_string(), origin: self.origin(key), needs })
            }
            None => Ok(()),
        }
    }

    /// `auto.auto_parallel` needs a number of stages, a number needs it, and two numbers must be one.
    fn check_stages(&self) -> Result<()> {
        let size = self.dist.pipeline_parallel_size;
        let said = size != 1 || self.is_given("dist.pipeline_parallel_size");
        match (self.auto.auto_parallel, self.pipeline.num_stages, size) {
            (false, Some(num_stages), _) => Err(ConfigError::StagesNotAuto { num_stages }),
            (true, None, _) => Err(ConfigError::AutoWithoutStages),
            (true, Some(num_stages), size) if said && size != num_stages => {
                Err(ConfigError::StagesDisagree { num_stages, size })
            }
            _ => Ok(()),
        }
    }

    /// The number of steps to train: `train.steps`, or the schedule's length.
    ///
    /// # Errors
    ///
    /// Neither is given.
    pub fn steps(&self) -> Result<usize> {
        self.train.steps.or(self.schedule.steps).ok_or(ConfigError::StepsMissing)
    }
}

impl ScheduleConfig {
    /// Checks that the schedule has an end where its shape needs one, that the warm-up fits in, and
    /// that the smallest rate is the smallest.
    ///
    /// # Errors
    ///
    /// What does not fit, with both numbers.
    pub fn validate(&self) -> Result<()> {
        let ends = matches!(self.kind, ScheduleKind::Linear | ScheduleKind::Cosine);
        match self.steps {
            None if ends => return Err(ConfigError::ScheduleWithoutEnd { kind: self.kind.word() }),
            Some(steps) if self.warmup_steps > steps => {
                return Err(ConfigError::WarmupTooLong { warmup_steps: self.warmup_steps, steps });
            }
            _ => {}
        }
        if self.min_rate > self.rate {
            return Err(ConfigError::RateBelowMinimum { min_rate: self.min_rate, rate: self.rate });
        }
        Ok(())
    }
}
