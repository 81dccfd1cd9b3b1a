//! What layouts leave as it is: one program for all comparisons of runs.
//!
//! It counts what it allocates. What needs f64, or Burn's random generator for itself, has a process of its own
//! (`epl_testing`).

use epl::comm::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

mod burn_logger;
mod burn_metrics;
mod checkpoint;
mod checkpoints;
mod custom_trainer;
mod decoders;
mod f32;
mod f64;
mod learner;
mod lora_amp;
mod lora_f64;
mod newcomer;
mod ordinary;
mod own_process;
mod parity;
mod quickstart;
mod reference;
mod scopes;
mod widths;
