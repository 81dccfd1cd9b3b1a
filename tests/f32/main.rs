//! What layouts, mixed precision, recomputation and checkpoints leave as it is, in f32.

#[path = "../parity/mod.rs"]
mod parity;
#[path = "../widths/mod.rs"]
mod widths;
#[path = "../scopes/mod.rs"]
mod scopes;

mod amp;
mod layouts;
mod nested;
mod nested_moe;
mod order;
mod recompute;
mod saving;
mod stages;
mod wide_stages;
