//! What every transport must do: cases, each run on every world that has what it needs (`list`).

#[macro_use]
mod list;

pub mod table;
pub mod world;

pub mod conformance;
pub mod crowded;
pub mod deadlocks;
pub mod failures;
pub mod faults;
pub mod in_memory;
pub mod layouts;
pub mod memory;
pub mod mismatches;
pub mod pool;
pub mod random_graphs;
pub mod random_programs;
pub mod started;
pub mod threads;
pub mod trace;
pub mod views;
