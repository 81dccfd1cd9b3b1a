//! In which order stages run forwards and backwards: by a rule, or as a file says.

use std::fmt;
use std::sync::Arc;

use crate::config::{Config, PipelineStrategy};
use crate::error::{Error, Result};
use crate::schedule::{self, Action, Schedule, Verified};

/// The order of every stage's actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// By a rule, for any number of micro-batches.
    Rule(Schedule),
    /// As the file `pipeline.schedule_file` says, for one number of micro-batches.
    File {
        /// The file.
        path: String,
        /// What it says.
        schedule: Arc<Verified>,
    },
}

impl Order {
    /// What the options `pipeline.*` say.
    ///
    /// # Errors
    ///
    /// Options that do not fit together, or a file that holds no schedule for these sizes.
    pub(crate) fn from_config(config: &Config, stages: usize, micro_batches: usize) -> Result<Self> {
        let said = &config.pipeline;
        if said.schedule_file.is_empty() {
            return rule(said.strategy, said.num_chunks).map(Self::Rule);
        }
        if stages == 1 {
            return Err(Error::invalid(format!(
                "pipeline.schedule_file = {:?} is an order for several pipeline stages, and there is 1; leave it out",
                said.schedule_file
            )));
        }
        if config.is_given("pipeline.strategy") {
            return Err(Error::invalid(format!(
                "pipeline.strategy = {} and pipeline.schedule_file = {:?} are two orders; leave one out",
                said.strategy, said.schedule_file
            )));
        }
        let read = schedule::load(&said.schedule_file, stages, micro_batches, said.num_chunks);
        let schedule = read.map_err(|error| Error::invalid(format!("pipeline.schedule_file: {error}")))?;
        Ok(Self::File { path: said.schedule_file.clone(), schedule: Arc::new(schedule) })
    }

    /// What a stage does in a step of so many micro-batches.
    ///
    /// # Errors
    ///
    /// When a file is for another number of them.
    pub fn actions(&self, stage: usize, stages: usize, micro_batches: usize) -> Result<Vec<Action>> {
        match self {
            Self::Rule(schedule) => Ok(schedule.actions(stage, stages, micro_batches)),
            Self::File { path, schedule } if schedule.sizes().micro_batches() != micro_batches => {
                Err(Error::invalid(format!(
                    "the schedule of {path:?} is for {} micro-batches, and this step has {micro_batches}; give every step as \
                     many as it is for",
                    schedule.sizes().micro_batches()
                )))
            }
            Self::File { schedule, .. } => Ok(schedule.actions(stage).to_vec()),
        }
    }

    /// Of how many parts of micro-batches a stage keeps activations at once, at most.
    pub(crate) fn peak_in_flight(&self, stage: usize, stages: usize, micro_batches: usize) -> usize {
        match self {
            Self::Rule(schedule) => schedule.peak_in_flight(stage, stages, micro_batches),
            Self::File { schedule, .. } => schedule.peak_in_flight(stage),
        }
    }

    /// What every stage does in a step of so many micro-batches, with the proof that it ends.
    ///
    /// # Errors
    ///
    /// A size of zero.
    pub fn verified(&self, stages: usize, micro_batches: usize) -> schedule::Result<Verified> {
        match self {
            Self::Rule(schedule) => schedule.verified(stages, micro_batches),
            Self::File { schedule, .. } => Ok(Verified::clone(schedule)),
        }
    }
}

fn rule(strategy: PipelineStrategy, chunks: usize) -> Result<Schedule> {
    match (strategy, chunks) {
        (PipelineStrategy::PreferForward, 1) => Ok(Schedule::PreferForward),
        (PipelineStrategy::PreferBackward, 1) => Ok(Schedule::PreferBackward),
        (PipelineStrategy::PreferBackwardOptimizer, 1) => Ok(Schedule::PreferBackwardOptimizer),
        (PipelineStrategy::PreferBackward, chunks) => Ok(Schedule::Interleaved { chunks }),
        (strategy, chunks) => Err(Error::invalid(format!(
            "pipeline.num_chunks = {chunks} interleaves forwards and backwards, which pipeline.strategy = {strategy} does \
             not; set pipeline.strategy = PreferBackward, or pipeline.num_chunks = 1"
        ))),
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(schedule) => write!(f, "{schedule}"),
            Self::File { path, .. } => f.write_str(path),
        }
    }
}
