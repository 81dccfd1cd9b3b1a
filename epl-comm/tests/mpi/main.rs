//! The conformance suite over MPI: this program starts itself under `mpirun`, with 1 to 4 processes.
//!
//! In each process the tests run one after the other, in the same order; what they run on so many ranks is a run over
//! MPI (`failing`), or is skipped. Where this program was not started by `mpirun`, the files of the suite do nothing.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../suite/exercise.rs"]
mod exercise;
mod failing;
#[path = "../suite/model.rs"]
mod model;
#[path = "../suite/program.rs"]
#[expect(dead_code, reason = "programs have an eager limit, which is that of threads")]
mod program;
#[path = "../suite/watchdog.rs"]
mod watchdog;

#[path = "../suite/conformance.rs"]
mod conformance;
#[path = "../suite/deadlocks.rs"]
mod deadlocks;
mod faults;
mod hosts;
#[path = "../suite/in_memory.rs"]
mod in_memory;
mod large;
#[path = "../suite/layouts.rs"]
mod layouts;
mod limits;
#[path = "../suite/mismatches.rs"]
mod mismatches;
mod processes;
mod programs;
#[path = "../suite/started.rs"]
mod started;
#[path = "../suite/views.rs"]
mod views;

/// In the environment: how many ranks are in each process.
const RANKS: &str = "EPL_MPI_TEST_RANKS";
/// In the environment: how many processes are taken for one host's.
const PER_HOST: &str = "EPL_MPI_TEST_PER_HOST";
/// In the environment: the file where it is noted which runs are made and which are skipped.
const NOTES: &str = "EPL_MPI_TEST_NOTES";
/// Begins a note.
const MADE: &str = "made";
/// Begins a note.
const SKIPPED: &str = "skipped";
