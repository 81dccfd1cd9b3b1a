//! No layout changes what a run computes: in f64, all errors are at most 1e-10.
//!
//! A binary of its own, since the element type of a device is set once for a process.

#[path = "../parity/mod.rs"]
mod parity;
#[path = "../checkpoints/mod.rs"]
mod checkpoints;
#[path = "../widths/mod.rs"]
mod widths;
#[path = "../scopes/mod.rs"]
mod scopes;

mod layouts;
mod nested;
mod offload;
mod pipeline;
mod resharding;
mod stage_widths;
mod zero;
