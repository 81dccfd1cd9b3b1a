//! The cases of `tests/comm` over MPI, and what is MPI's own: this program starts itself under `mpirun`, with 1 to 4 processes.
//!
//! In each process the tests run one after the other, in the same order. What is to be run by processes is ignored where this
//! program was not started by `mpirun`.
#![allow(clippy::unwrap_used, missing_docs)]

use epl_comm::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[path = "../comm/exercise.rs"]
mod exercise;
#[path = "../comm/model.rs"]
mod model;
#[path = "../comm/program.rs"]
mod program;
#[path = "../comm/watchdog.rs"]
mod watchdog;

#[macro_use]
#[path = "../comm/cases/mod.rs"]
mod cases;
mod kind;

mod faults;
mod hosts;
mod large;
mod limits;
mod processes;

/// A test for each case.
mod on {
    world!(mpi, tests ($) #[ignore = "run under mpirun by `processes`"]);
}

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
