//! What every stage of a pipeline does, and in which order: pure values, made and checked without a tensor.
//!
//! ```text
//!  Schedule ──> lists of Actions ──verify──> Verified ──simulate──> Timeline
//!  a file  ──parse──^                        what a step runs       what a plan prints
//! ```
//!
//! Letters, everywhere in this folder: p stages, m micro-batches, v chunks a stage; stage s, chunk c,
//! part k = c·p + s, the k-th of the p·v pieces into which the model is cut.
//!
//! A schedule belongs to nobody: [`verify`] proves of any lists of actions, ours or a user's, that
//! they end, and nothing later has to check again.

mod error;
mod action;
mod sizes;
mod interleaved;
mod rule;
mod circle;
mod verify;
mod timeline;
mod drawing;
mod file;
mod stages;
pub mod partition;

pub use action::{Action, ActionKind, NotAnAction};
pub use circle::{Circle, Wait};
pub use error::{Result, ScheduleError};
pub use file::{load, parse};
pub use rule::Schedule;
pub use sizes::Sizes;
pub use stages::Stages;
pub(crate) use stages::run_of;
pub use timeline::{Cost, Span, Timeline, simulate};
pub use verify::{Verified, verify};
