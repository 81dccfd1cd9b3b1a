//! Training, from what the user says to what is left on the disk: one program for all tests of this crate.
//!
//! It counts what it allocates. What is a whole process's is tested in a process of its own (`epl_testing`).
#![allow(clippy::unwrap_used)] // Also in the functions that the tests share.

use epl_comm::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

mod auto;
mod budget;
mod config;
mod data;
mod data_position;
mod device_budget;
mod discover;
mod discover_in_search;
mod durability;
mod engine;
mod evaluate;
mod freed_memory;
mod layers;
mod loading_memory;
mod memory;
mod memory_counters;
mod mesh;
mod offload;
mod offload_resident;
mod optimizer_state;
mod ordinary;
mod param_groups;
mod pipeline;
mod plan_memory;
mod recomputation;
mod recompute;
mod reduction;
mod scopes;
mod search_options;
mod simulate;
mod stage_choices;
mod stage_memory;
mod step_time;
mod tensors;
mod trace;
mod trainer;
mod whole_layers;
mod zero_memory;
