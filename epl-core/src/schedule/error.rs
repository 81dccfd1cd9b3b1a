//! What can be wrong with a schedule.

use super::action::{Action, NotAnAction};
use super::circle::Circle;

/// A schedule that cannot run, or that cannot be read. Places in a stage's list count from 1, as the words of a line;
/// stages, micro-batches and chunks count from 0, as everywhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A size of zero.
    #[error("the number of {what} is 0; it must be at least 1")]
    Zero {
        /// Of what.
        what: &'static str,
    },
    /// Sizes whose product overflows.
    #[error(
        "{stages} stages × {micro_batches} micro-batches × {chunks} chunks are more actions than can be counted; \
         lower one of them"
    )]
    TooMany {
        /// Stages.
        stages: usize,
        /// Micro-batches.
        micro_batches: usize,
        /// Chunks a stage.
        chunks: usize,
    },
    /// More or fewer lists of actions than stages.
    #[error(
        "the number of lists of actions (in a file: of lines) is {lists}, that of stages {stages}; give one list a stage"
    )]
    Stages {
        /// Lists of actions.
        lists: usize,
        /// Stages of the pipeline.
        stages: usize,
    },
    /// An action on a micro-batch or chunk that does not exist.
    #[error(
        "stage {stage}, place {place}: {action} is of {what} {number}, but their number is {size}, counted from 0; \
         remove it, or raise their number to {}", .number.saturating_add(1)
    )]
    NoSuch {
        /// The stage.
        stage: usize,
        /// Where in its list.
        place: usize,
        /// The action.
        action: Action,
        /// What does not exist: a micro-batch or a chunk.
        what: &'static str,
        /// Which.
        number: usize,
        /// How many there are.
        size: usize,
    },
    /// An action that a stage does more than once.
    #[error("stage {stage} does {action} twice, at places {first} and {second}; remove one")]
    Twice {
        /// The stage.
        stage: usize,
        /// The action.
        action: Action,
        /// Where it comes first.
        first: usize,
        /// Where it comes again.
        second: usize,
    },
    /// An action that a stage never does.
    #[error("stage {stage} never does {action}: its list has {given} of {needed} actions; add it")]
    Missing {
        /// The stage.
        stage: usize,
        /// The action.
        action: Action,
        /// Actions in its list.
        given: usize,
        /// Actions that it has to do.
        needed: usize,
    },
    /// A backward before its own forward.
    #[error(
        "stage {stage} does {action} at place {place}, before its forward at place {forward}, whose activations it \
         needs; put the forward first"
    )]
    BackwardFirst {
        /// The stage.
        stage: usize,
        /// The backward.
        action: Action,
        /// Where it comes.
        place: usize,
        /// Where its forward comes.
        forward: usize,
    },
    /// Stages that wait for one another.
    #[error(
        "the schedule never ends, since stages wait in a circle: {0}; \
         where a stage has what is needed after what it stands at, put it before"
    )]
    Deadlock(Circle),
    /// Costs that are not one a part.
    #[error("{costs} costs for {parts} parts ({stages} stages × {chunks} chunks); give one a part")]
    Costs {
        /// Costs.
        costs: usize,
        /// Parts of the model.
        parts: usize,
        /// Stages.
        stages: usize,
        /// Chunks a stage.
        chunks: usize,
    },
    /// Costs whose sum overflows.
    #[error(
        "{micro_batches} times the costs of all parts is more than {}; give them in a larger unit of time",
        u64::MAX
    )]
    CostsOverflow {
        /// Micro-batches.
        micro_batches: usize,
    },
    /// A word of a file that is no action.
    #[error("line {line} (stage {stage}), word {word}: `{token}` is no action; {reason}")]
    Word {
        /// The line, counted from 1.
        line: usize,
        /// The stage that the line is of.
        stage: usize,
        /// Which word of the line, counted from 1.
        word: usize,
        /// The word.
        token: String,
        /// What an action looks like.
        reason: NotAnAction,
    },
    /// A schedule from a file that cannot run.
    #[error("line {line}: {error}")]
    Line {
        /// The line of the stage that the error is about, counted from 1.
        line: usize,
        /// What is wrong.
        error: Box<ScheduleError>,
    },
    /// A file that cannot be opened.
    #[error("the schedule cannot be read from {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The cause.
        reason: String,
    },
    /// Something wrong in a file.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// What is wrong.
        error: Box<ScheduleError>,
    },
}

impl ScheduleError {
    /// The stage whose list is wrong; of a circle, the first stage in it.
    pub fn stage(&self) -> Option<usize> {
        match self {
            Self::NoSuch { stage, .. }
            | Self::Twice { stage, .. }
            | Self::Missing { stage, .. }
            | Self::BackwardFirst { stage, .. }
            | Self::Word { stage, .. } => Some(*stage),
            Self::Deadlock(circle) => circle.waits().first().map(|wait| wait.stage),
            Self::Line { error, .. } | Self::File { error, .. } => error.stage(),
            _ => None,
        }
    }
}

/// A result whose error is a [`ScheduleError`].
pub type Result<T> = std::result::Result<T, ScheduleError>;
