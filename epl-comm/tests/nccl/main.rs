//! The transport over NCCL, with a library that has NCCL's functions over host memory (`tests/fake_nccl`): all but the
//! memory of a GPU, and what NCCL itself does.
#![allow(clippy::unwrap_used, missing_docs)]

mod fake;
mod host_memory;

#[path = "../suite/exercise.rs"]
mod exercise;
#[allow(dead_code, unused_imports, reason = "its launchers are those of the local transport")]
#[path = "../suite/failing.rs"]
mod failing;
#[allow(dead_code, reason = "not all of the suite is run here")]
#[path = "../suite/model.rs"]
mod model;
#[path = "../suite/program.rs"]
mod program;
#[path = "../suite/watchdog.rs"]
mod watchdog;

mod conformance;
mod failures;
mod loading;
mod semantics;
mod workers;
