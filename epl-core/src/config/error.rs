//! What can be wrong with a configuration.

use std::path::PathBuf;

use super::origin::Origin;

/// A configuration that cannot be used, with the facts and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No option has this key.
    #[error("unknown option {key} ({origin}); the nearest is {nearest}")]
    UnknownOption {
        /// The key as given; for the environment, the variable's name.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// The most similar key that exists, written in the same way.
        nearest: String,
    },
    /// The option does not take this value: wrong type, or out of range.
    #[error("{key} = {given} ({origin}) is not allowed; allowed: {allowed}")]
    NotAllowed {
        /// The option.
        key: String,
        /// The value as given.
        given: String,
        /// The values it takes.
        allowed: String,
        /// Where the value stands.
        origin: Origin,
    },
    /// A value that only a later version will take.
    #[error("{key} = {given} ({origin}): not yet; implemented so far is {key} = {implemented}")]
    NotYet {
        /// The option.
        key: String,
        /// The value as given.
        given: String,
        /// The value that works.
        implemented: String,
        /// Where the value stands.
        origin: Origin,
    },
    /// A setting of the command line that has no `=`.
    #[error("`{setting}` (command line) is no setting; write key=value, such as train.seed=7")]
    NoSetting {
        /// The text.
        setting: String,
    },
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// The file is not TOML.
    #[error("file {}, line {line}: not valid TOML: {cause}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, counted from one.
        line: usize,
        /// What the parser said.
        cause: String,
    },
    /// Something else stands where a section should.
    #[error("{section} = {given} ({origin}): {section} is a section; write [{section}] and its keys below it")]
    NotASection {
        /// The section.
        section: String,
        /// The value as given.
        given: String,
        /// Where it stands.
        origin: Origin,
    },
    /// All three batch settings are given, and they disagree.
    #[error(
        "train.micro_batch_size {micro_batch_size} × pipeline.num_micro_batch {num_micro_batch} × \
         {replicas} replicas = {product}, but train.global_batch_size = {global_batch_size}; \
         leave one of the three out, or set train.global_batch_size = {product}"
    )]
    BatchDisagrees {
        /// `train.micro_batch_size`.
        micro_batch_size: usize,
        /// `pipeline.num_micro_batch`.
        num_micro_batch: usize,
        /// Replicas: the size of the data axis.
        replicas: usize,
        /// Their product.
        product: u128,
        /// `train.global_batch_size`.
        global_batch_size: usize,
    },
    /// The global batch is no whole number of micro-batches on every replica.
    #[error(
        "train.global_batch_size = {global_batch_size} is not a multiple of train.micro_batch_size \
         {micro_batch_size} × {replicas} replicas = {unit}; set it to {nearest}, or give \
         pipeline.num_micro_batch instead of train.micro_batch_size to cut it unevenly"
    )]
    BatchUneven {
        /// `train.global_batch_size`.
        global_batch_size: usize,
        /// `train.micro_batch_size`.
        micro_batch_size: usize,
        /// Replicas: the size of the data axis.
        replicas: usize,
        /// Samples that all replicas run at a time.
        unit: u128,
        /// The next multiple up.
        nearest: u128,
    },
    /// Neither batch size is given.
    #[error("no batch size: set train.global_batch_size, or train.micro_batch_size")]
    BatchMissing,
    /// A batch size or a number of micro-batches of zero.
    #[error("{what} is 0; it must be at least 1")]
    BatchZero {
        /// The option.
        what: &'static str,
    },
    /// The batch does not fit into a machine word.
    #[error("a global batch of {samples} samples is too large")]
    BatchTooLarge {
        /// Samples a step.
        samples: u128,
    },
    /// A schedule that ends, without an end.
    #[error("schedule.kind = \"{kind}\" needs the length of the schedule: set schedule.steps")]
    ScheduleWithoutEnd {
        /// `schedule.kind`.
        kind: &'static str,
    },
    /// The warm-up does not end before the schedule does.
    #[error(
        "schedule.warmup_steps = {warmup_steps} exceeds schedule.steps = {steps}; \
         the warm-up is part of the schedule"
    )]
    WarmupTooLong {
        /// `schedule.warmup_steps`.
        warmup_steps: usize,
        /// `schedule.steps`.
        steps: usize,
    },
    /// The smallest rate exceeds the rate.
    #[error("schedule.min_rate = {min_rate} exceeds schedule.rate = {rate}")]
    RateBelowMinimum {
        /// `schedule.min_rate`.
        min_rate: f64,
        /// `schedule.rate`.
        rate: f64,
    },
    /// The rate has a least value, and never falls.
    #[error(
        "schedule.min_rate = {min_rate} has no effect without a schedule.kind other than constant; set that, or leave \
         schedule.min_rate out"
    )]
    RateNeverFalls {
        /// `schedule.min_rate`.
        min_rate: f64,
    },
    /// A shape of the schedule without what it needs.
    #[error("schedule.kind = \"{kind}\" needs {option}")]
    ScheduleNeeds {
        /// `schedule.kind`.
        kind: &'static str,
        /// The option that is not given.
        option: &'static str,
    },
    /// A detail of the schedule with which the rate would not fall.
    #[error("schedule.{option} = {value}, and must be {needs}")]
    ScheduleValue {
        /// The option, without its section.
        option: &'static str,
        /// Its value.
        value: f64,
        /// What is allowed.
        needs: &'static str,
    },
    /// Milestones that do not follow each other and the warm-up.
    #[error("schedule.milestones = {milestones:?} must ascend, none before the warm-up ends, at step {warmup_steps}")]
    MilestonesUnordered {
        /// `schedule.milestones`.
        milestones: Vec<usize>,
        /// `schedule.warmup_steps`.
        warmup_steps: usize,
    },
    /// Nothing says how long to train.
    #[error("how long to train is not said: set train.steps, or schedule.steps")]
    StepsMissing,
    /// A number of stages that nobody chooses.
    #[error(
        "pipeline.num_stages = {num_stages} stages are chosen with auto.auto_parallel = true only, and that is false; set \
         it, or dist.pipeline_parallel_size in place of both"
    )]
    StagesNotAuto {
        /// The stages to be chosen.
        num_stages: usize,
    },
    /// Two numbers of stages.
    #[error(
        "pipeline.num_stages = {num_stages} and dist.pipeline_parallel_size = {size} are two numbers of stages; leave one \
         out"
    )]
    StagesDisagree {
        /// The stages to be chosen.
        num_stages: usize,
        /// The size of the pipeline axis.
        size: usize,
    },
    /// A detail of something that is off.
    #[error("{key} = {given} ({origin}) has no effect without {needs}; set that, or leave {key} out")]
    NoEffect {
        /// The option.
        key: &'static str,
        /// Its value.
        given: String,
        /// Where the value stands.
        origin: Origin,
        /// What it is a detail of.
        needs: &'static str,
    },
}

/// A result whose error is a [`ConfigError`].
pub type Result<T> = std::result::Result<T, ConfigError>;
