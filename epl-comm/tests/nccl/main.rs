//! The transport over NCCL, with a library that has NCCL's functions over host memory (`tests/fake_nccl`): all but the
//! memory of a GPU, and what NCCL itself does. The conformance suite is run by its own files.
#![allow(clippy::unwrap_used, missing_docs)]

mod failing;
mod fake;
mod host_memory;

#[path = "../suite/exercise.rs"]
mod exercise;
#[path = "../suite/model.rs"]
mod model;
#[path = "../suite/program.rs"]
mod program;
#[path = "../suite/watchdog.rs"]
mod watchdog;

mod communicators;
#[path = "../suite/conformance.rs"]
mod conformance;
#[path = "../suite/deadlocks.rs"]
mod deadlocks;
mod failures;
#[path = "../suite/layouts.rs"]
mod layouts;
mod loading;
#[path = "../suite/mismatches.rs"]
mod mismatches;
mod programs;
mod semantics;
#[path = "../suite/started.rs"]
mod started;
mod streams;
#[path = "../suite/views.rs"]
mod views;
mod workers;
