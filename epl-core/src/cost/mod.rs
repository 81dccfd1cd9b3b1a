//! What the things of a step take: segments over rows, collectives over bytes. Measured, or of links that are described.
//!
//! - `line`: a function through points.
//! - `network`: collectives.
//! - `step`: what a simulation asks.

mod line;
mod network;
mod step;

pub use line::Line;
pub use network::{CallKind, GroupShape, Link, MeasuredCalls, Network};
pub use step::{Rates, SegmentTime, StepCosts};
