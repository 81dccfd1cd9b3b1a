//! Seeing what a run does.
//!
//! - `segments`: what each segment of a model stores and costs.
//! - `chrome`: what every rank did when, for Perfetto.

mod segments;
mod chrome;

pub use chrome::write_trace;
pub use segments::{Profile, SegmentProfile};
