//! What layouts, mixed precision, recomputation and checkpoints leave as it is, in f32.

mod amp;
mod amp_groups;
mod amp_ordinary;
mod decoder;
mod discovered;
mod layouts;
mod nested;
mod nested_moe;
mod order;
mod recompute;
mod saving;
mod stages;
mod wide_stages;
