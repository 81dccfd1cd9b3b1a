//! The suite over NCCL between ranks that know no more of each other than processes do, with the library of
//! `tests/fake_nccl`. What is said of processes alone is in `tests/nccl/workers.rs`.
#![allow(clippy::unwrap_used, missing_docs)]

mod failing;

#[allow(dead_code, reason = "it has what other binaries need, too")]
#[path = "../nccl/fake.rs"]
mod fake;
#[path = "../nccl/host_memory.rs"]
mod host_memory;

#[path = "../suite/exercise.rs"]
mod exercise;
#[path = "../suite/model.rs"]
mod model;
#[path = "../suite/watchdog.rs"]
mod watchdog;

#[path = "../suite/conformance.rs"]
mod conformance;
#[path = "../suite/layouts.rs"]
mod layouts;
#[path = "../suite/mismatches.rs"]
mod mismatches;
#[path = "../suite/started.rs"]
mod started;
#[path = "../suite/views.rs"]
mod views;
