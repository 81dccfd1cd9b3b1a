//! How a step is made, beside what lies where.

use crate::config::{CommunicationConfig, Config, ConfigError, HalfDtype, LossScale, ReduceMethod};

/// How an [`Engine`](crate::Engine) makes a step.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The limit of the gradients' global norm; none: not clipped.
    pub clip_norm: Option<f64>,
    /// Whether that is the reduced gradient's; otherwise each replica clips its own, before they are reduced.
    pub clip_after_allreduce: bool,
    /// How the gradients of micro-batches and replicas are combined.
    pub reduce: ReduceMethod,
    /// Reductions that may be in flight together.
    pub num_communicators: usize,
    /// Groups in which the parameters are updated, one after the other; a bucket that is sharded or lies away from the device
    /// is at least one by itself, however few these are.
    pub num_apply_group: usize,
    /// Whether the trainer logs the types in which parameters are computed with.
    pub debug_log: bool,
    /// What the loss is multiplied by, under mixed precision.
    pub loss_scale: LossScale,
    /// Gradients in 16 bits on their way; none: in their own type.
    pub compression: Option<Compression>,
    /// Whether the first step compares its gradients with those computed without recomputation.
    pub check_recomputation: bool,
    /// Whether the first step measures what segments store and cost.
    pub profile_segments: bool,
    /// What a rank's device can reach, in 10¹² floating-point operations a second; none: not known.
    pub peak_tflops: Option<f64>,
    /// The steps that a trace holds; none: all that happens.
    pub trace: Option<TraceWindow>,
}

/// A 16-bit type and the factor that brings gradients into its range.
///
/// A gradient is sent as `cast(gradient · scale)` and received as `sum ÷ scale`. The sums are taken in f32 and
/// rounded once more, so that an element is off by at most ε · Σ|gradients of the ranks| (ε = 2⁻¹⁰ for f16, 2⁻⁷ for
/// bf16), plus, for f16, 2⁻²⁴ ÷ scale a rank where it falls below the smallest normal number. This is
/// `communication.fp16` of EPL.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compression {
    /// The type on the way.
    pub dtype: HalfDtype,
    /// The factor; a power of two is exact.
    pub scale: f64,
}

impl Compression {
    /// What the options `communication.fp16*` say.
    pub fn from_config(config: &CommunicationConfig) -> Option<Self> {
        config.fp16.then_some(Self { dtype: config.fp16_dtype, scale: config.fp16_scale })
    }
}

/// Some steps of a run, from its start or from where it resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceWindow {
    /// Steps before them.
    pub skip: u64,
    /// How many they are.
    pub steps: u64,
}

impl TraceWindow {
    /// What the options `profile.*` say; none without a trace.
    pub fn from_config(config: &Config) -> Option<Self> {
        let profile = &config.profile;
        let window = || Self { skip: profile.trace_skip as u64, steps: profile.trace_steps as u64 };
        (!profile.trace.is_empty()).then(window)
    }

    /// Whether a step is among them, which is counted from 0.
    pub fn contains(self, step: u64) -> bool {
        step.checked_sub(self.skip).is_some_and(|step| step < self.steps)
    }
}

impl Default for EngineSettings {
    /// What the options say where nothing is given.
    fn default() -> Self {
        Self::from_config(&Config::new())
    }
}

impl EngineSettings {
    /// Whether the options of the same meaning take what was given in code.
    ///
    /// # Errors
    ///
    /// The first that does not, by its name.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        // In code the largest number says «as many as there are»; no option holds it.
        let count = |number: usize| number.min(i64::MAX as usize);
        let mut config = Config::new();
        config.set("train.clip_norm", self.clip_norm)?;
        config.set("communication.num_communicators", count(self.num_communicators))?;
        config.set("optimizer.num_apply_group", count(self.num_apply_group))?;
        config.set("amp.loss_scale", self.loss_scale)?;
        config.set("profile.peak_tflops", self.peak_tflops)?;
        if let Some(compression) = self.compression {
            config.set("communication.fp16_scale", compression.scale)?;
        }
        match self.trace {
            Some(window) => config.set("profile.trace_steps", window.steps.min(i64::MAX as u64)),
            None => Ok(()),
        }
    }

    /// The limit of the norm of each replica's own gradient, where that is clipped. Of one replica the reduced gradient is the
    /// own.
    pub(crate) fn local_clip_norm(&self, replicas: usize) -> Option<f64> {
        self.clip_norm.filter(|_| !self.clip_after_allreduce && replicas > 1)
    }

    /// What the options `train.clip_norm`, `optimizer.num_apply_group`, `communication.*`, `amp.*`, `profile.*` and
    /// `gradient_checkpoint.check_gradients` say.
    pub fn from_config(config: &Config) -> Self {
        let communication = &config.communication;
        Self {
            clip_norm: config.train.clip_norm,
            clip_after_allreduce: communication.clip_after_allreduce,
            reduce: communication.gradients_reduce_method,
            num_communicators: communication.num_communicators,
            debug_log: config.amp.debug_log,
            loss_scale: config.amp.loss_scale,
            num_apply_group: config.optimizer.num_apply_group,
            compression: Compression::from_config(communication),
            check_recomputation: config.gradient_checkpoint.check_gradients,
            profile_segments: config.profile.segments,
            peak_tflops: config.profile.peak_tflops,
            trace: TraceWindow::from_config(config),
        }
    }
}
