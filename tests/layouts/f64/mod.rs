//! No layout changes what a run computes: in f64, all errors are at most 1e-10.

mod chain_types;
mod decoder;
pub mod discovered;
mod discovered_search;
mod found;
mod indexed;
mod groups;
mod layouts;
mod local_clip;
mod nested;
mod offload;
mod pipeline;
mod resharding;
mod stage_widths;
mod zero;
