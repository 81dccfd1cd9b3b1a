//! All tests of this crate but those under `mpirun` and on a GPU: what every transport must do, on every world (`cases`), and
//! what is one's own.
//!
//! It counts what it allocates. What is a whole process's is tested in a process of its own (`epl_testing`).
#![allow(clippy::unwrap_used, missing_docs)]

use epl_comm::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

mod exercise;
mod model;
mod program;
mod watchdog;

#[macro_use]
mod cases;
mod kind;
mod table;

mod custom_vjp;
mod dry;
mod hosts_of;
mod nccl;

use nccl::{fake, host_memory};

/// A test for each case on each world.
mod on {
    world!(threads, tests ($));
    world!(hosts, tests ($));
    world!(nccl, tests ($));
    world!(workers, tests ($));
}
