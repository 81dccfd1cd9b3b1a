//! Seeing what a run does.
//!
//! - `segments`: what each segment of a model stores and costs.
//! - `measure`: the same before the model exists.
//! - `chrome`: what every rank did when, for Perfetto.

mod segments;
pub(crate) mod measure;
mod chrome;

pub use chrome::write_trace;
pub use segments::{Profile, SegmentProfile};
