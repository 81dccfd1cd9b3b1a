//! What a configuration must agree on with itself. What depends on the ranks that exist is checked
//! where they are known: [`Config::batch`] and [`cluster`](crate::topology::cluster).

use super::choice::{AmpLevel, OffloadLevel, ScheduleKind, StateTier, ZeroLevel};
use super::error::{ConfigError, Result};
use super::origin::Origin;
use super::sections::{Config, OPTIONS, OffloadConfig, ScheduleConfig};

/// A setting, what must be on for it to have an effect, and whether that is.
type Detail = (&'static str, &'static str, fn(&Config) -> bool);

const SEARCHES: &str = "auto.auto_parallel = true without pipeline.num_stages, which searches a layout";
const SLICES: &str =
    "dist.tensor_parallel_size above 1, or auto.auto_parallel = true without pipeline.num_stages, which may choose it";

const DETAILS: &[Detail] = &[
    ("amp.dtype", "amp.level = O1", in_half),
    ("amp.loss_scale", "amp.level = O1", in_half),
    ("amp.full_precision", "amp.level = O1", in_half),
    ("amp.debug_log", "amp.level = O1", in_half),
    ("offload.folder", "state in files (offload.level = v1, or a tier of file)", in_files),
    ("offload.resident_bytes", "state in files (offload.level = v1, or a tier of file)", in_files),
    ("communication.fp16_dtype", "communication.fp16 = true", sends_half),
    ("communication.fp16_scale", "communication.fp16 = true", sends_half),
    ("communication.clip_after_allreduce", "train.clip_norm", |config| config.train.clip_norm.is_some()),
    ("auto.margin", SEARCHES, Config::searches),
    ("auto.calibration", SEARCHES, Config::searches),
    ("auto.measure", SEARCHES, Config::searches),
    ("auto.speeds", SEARCHES, Config::searches),
    ("auto.discover", SLICES, may_have_slices),
    ("dist.whole_layers", SLICES, may_have_slices),
    ("profile.trace_skip", "profile.trace, a file", is_traced),
    ("profile.trace_steps", "profile.trace, a file", is_traced),
    ("io.row_weights", "io.slicing = false, as rows are those of each replica's files there", |config| {
        !config.io.slicing
    }),
    ("io.unbalanced_io_slicing", "io.slicing = true", sliced),
    ("io.drop_last_files", "io.slicing = true", sliced),
    ("schedule.gamma", "schedule.kind = step, multi_step or exponential", multiplies),
    ("schedule.every", "schedule.kind = step", |config| config.schedule.kind == ScheduleKind::Step),
    ("schedule.milestones", "schedule.kind = multi_step", |config| config.schedule.kind == ScheduleKind::MultiStep),
    ("schedule.power", "schedule.kind = polynomial", |config| config.schedule.kind == ScheduleKind::Polynomial),
    ("schedule.model_size", "schedule.kind = noam", |config| config.schedule.kind == ScheduleKind::Noam),
    (
        "communication.max_splits",
        "parameters that stay whole on the device (zero.level up to v2, none offloaded), as those that are gathered make a \
         bucket for each segment",
        parameters_stay,
    ),
    (
        "communication.num_communicators",
        "gradients that are reduced once a step (zero.level up to v1, none offloaded), as one bucket travels at a time where \
         they are in every micro-batch",
        reduces_once,
    ),
];

/// The same of a default that says something, where it was said on the command line or in the environment: elsewhere it may
/// stand because a configuration was saved, with all options.
const SAID: &[Detail] = &[(
    "communication.sparse_as_dense",
    "gradients that stay whole (zero.level up to v0, none offloaded), as rows are not scattered",
    gradients_stay,
)];

fn multiplies(config: &Config) -> bool {
    matches!(config.schedule.kind, ScheduleKind::Step | ScheduleKind::MultiStep | ScheduleKind::Exponential)
}

fn parameters_stay(config: &Config) -> bool {
    config.zero.level != ZeroLevel::V3 && on_device(config, config.offload.parameters)
}

fn reduces_once(config: &Config) -> bool {
    let clips_own = config.train.clip_norm.is_some() && !config.communication.clip_after_allreduce;
    let once = match config.zero.level {
        ZeroLevel::V3 => false,
        // What each replica clips is whole until then.
        ZeroLevel::V2 if !clips_own => false,
        _ => on_device(config, config.offload.gradients),
    };
    // One is what there is then.
    once || config.communication.num_communicators == 1
}

fn gradients_stay(config: &Config) -> bool {
    !config.zero.level.shards_gradients() && on_device(config, config.offload.gradients)
}

/// Whether state of a kind lies on the device, where this is said of it.
fn on_device(config: &Config, said: Option<StateTier>) -> bool {
    said.map_or(config.offload.level == OffloadLevel::Off, |tier| tier == StateTier::Device)
}

fn in_half(config: &Config) -> bool {
    config.amp.level == AmpLevel::O1
}

fn sends_half(config: &Config) -> bool {
    config.communication.fp16
}

fn may_have_slices(config: &Config) -> bool {
    config.searches() || config.dist.tensor_parallel_size > 1
}

fn is_traced(config: &Config) -> bool {
    !config.profile.trace.is_empty()
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
        SAID.iter().try_for_each(|detail| self.check_said(detail))?;
        self.check_stages()?;
        self.schedule.validate()
    }

    /// The pipeline stages of a replica: `dist.pipeline_parallel_size`, or with `auto.auto_parallel` the number
    /// `pipeline.num_stages`. Scopes in a model may make others.
    pub fn stages(&self) -> usize {
        self.pipeline.num_stages.filter(|_| self.auto.auto_parallel).unwrap_or(self.dist.pipeline_parallel_size)
    }

    /// A value other than the default must do something. The default may stand in a file: saved configurations have all.
    fn check_detail(&self, detail: &Detail) -> Result<()> {
        let default = Self::default().get(detail.0);
        self.refuse_detail(detail, self.get(detail.0) != default)
    }

    fn check_said(&self, detail: &Detail) -> Result<()> {
        let is_default = self.get(detail.0) == Self::default().get(detail.0);
        let is_said = matches!(self.origin(detail.0), Origin::CommandLine | Origin::Environment { .. });
        self.refuse_detail(detail, is_said && is_default)
    }

    fn refuse_detail(&self, &(key, needs, is_on): &Detail, is_meant: bool) -> Result<()> {
        match self.get(key).filter(|_| is_meant && !is_on(self)) {
            Some(value) => {
                Err(ConfigError::NoEffect { key, given: value.to_string(), origin: self.origin(key), needs })
            }
            None => Ok(()),
        }
    }

    /// Whether a layout is searched: `auto.auto_parallel` without a number of stages.
    pub fn searches(&self) -> bool {
        self.auto.auto_parallel && self.pipeline.num_stages.is_none()
    }

    /// A number of stages needs `auto.auto_parallel`, and two numbers must be one.
    fn check_stages(&self) -> Result<()> {
        let size = self.dist.pipeline_parallel_size;
        let said = size != 1 || self.is_given("dist.pipeline_parallel_size");
        match (self.auto.auto_parallel, self.pipeline.num_stages, size) {
            (false, Some(num_stages), _) => Err(ConfigError::StagesNotAuto { num_stages }),
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
        let ends = matches!(self.kind, ScheduleKind::Linear | ScheduleKind::Cosine | ScheduleKind::Polynomial);
        match self.steps {
            None if ends => return Err(ConfigError::ScheduleWithoutEnd { kind: self.kind.word() }),
            Some(steps) if self.warmup_steps > steps => {
                return Err(ConfigError::WarmupTooLong { warmup_steps: self.warmup_steps, steps });
            }
            _ => {}
        }
        self.validate_details()?;
        let largest = match (self.kind, self.model_size) {
            (ScheduleKind::Noam, Some(width)) => self.rate / ((width * self.warmup_steps) as f64).sqrt(),
            _ => self.rate,
        };
        if self.min_rate > largest {
            return Err(ConfigError::RateBelowMinimum { min_rate: self.min_rate, rate: largest });
        }
        Ok(())
    }

    /// What the shapes need beside a rate, each by itself.
    fn validate_details(&self) -> Result<()> {
        let number = |option, value: f64, is_fine: bool, needs| match is_fine {
            true => Ok(()),
            false => Err(ConfigError::ScheduleValue { option, value, needs }),
        };
        if let Some(gamma) = self.gamma {
            number("gamma", gamma, gamma > 0.0 && gamma <= 1.0, "above 0 and at most 1")?;
        }
        number("power", self.power, self.power > 0.0 && self.power.is_finite(), "a finite number above 0")?;
        for (option, value) in [("every", self.every), ("model_size", self.model_size)] {
            number(option, 0.0, value != Some(0), "at least 1")?;
        }
        let in_order = self.milestones.windows(2).all(|pair| pair[0] < pair[1]);
        if !in_order || self.milestones.first().is_some_and(|first| *first < self.warmup_steps) {
            let (milestones, warmup_steps) = (self.milestones.clone(), self.warmup_steps);
            return Err(ConfigError::MilestonesUnordered { milestones, warmup_steps });
        }
        let missing = match self.kind {
            ScheduleKind::MultiStep if self.milestones.is_empty() => "schedule.milestones",
            ScheduleKind::Step if self.every.is_none() => "schedule.every",
            ScheduleKind::Exponential if self.gamma.is_none() => "schedule.gamma",
            ScheduleKind::Noam if self.model_size.is_none() => "schedule.model_size",
            ScheduleKind::Noam if self.warmup_steps == 0 => "schedule.warmup_steps",
            _ => return Ok(()),
        };
        Err(ConfigError::ScheduleNeeds { kind: self.kind.word(), option: missing })
    }
}

impl Config {
    /// The first option of the learning rate that is given, as one without effect: a program that gives a rate of its own
    /// refuses it.
    pub(crate) fn said_rate(&self) -> Option<ConfigError> {
        let options = [
            "schedule.kind",
            "schedule.rate",
            "schedule.warmup_steps",
            "schedule.min_rate",
            "schedule.gamma",
            "schedule.every",
            "schedule.milestones",
            "schedule.power",
            "schedule.model_size",
        ];
        let key = options.into_iter().find(|key| self.is_given(key))?;
        let needs = "the configuration's learning rate, and this program gives the trainer one of its own";
        Some(ConfigError::NoEffect { key, given: self.get(key)?.to_string(), origin: self.origin(key), needs })
    }
}
