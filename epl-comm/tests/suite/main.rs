//! The conformance suite: what every transport must do, run over the local one.
#![allow(clippy::unwrap_used, missing_docs)]

mod exercise;
mod failing;
mod model;
mod program;
mod watchdog;

mod conformance;
mod crowded;
mod custom_vjp;
mod deadlocks;
mod dry;
mod failures;
mod hosts;
mod in_memory;
mod faults;
mod layouts;
mod mismatches;
mod pool;
mod random_graphs;
mod random_programs;
mod started;
mod threads;
mod trace;
mod views;
