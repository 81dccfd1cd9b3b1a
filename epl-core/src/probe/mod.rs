//! What a model needs and does: measured on a segment at a time, before or while it runs.
//!
//! - `segments`: what each segment of a model stores and costs.
//! - `cache_flush`: so that what is timed comes from memory.
//! - `measure`: the same before the model exists.
//! - `timing`: what segments take.
//! - [`planned`]: a model that is laid out and not drawn, and what it would need.
//! - `discover`: which segments of plain layers can run in slices.
//! - `shapes`: what segments call and send, for the list of a step.
//! - `chrome`: what every rank did when, for Perfetto; `joined`: one such file of those of several processes.

mod segments;
pub(crate) mod cache_flush;
pub(crate) mod measure;
mod chrome;
mod joined;
pub mod planned;
pub(crate) mod discover;
pub(crate) mod timing;
mod shapes;

pub use chrome::write_trace;
pub use joined::join_traces;
pub use segments::{Profile, SegmentProfile};
