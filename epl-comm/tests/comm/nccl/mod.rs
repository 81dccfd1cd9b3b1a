//! The transport over NCCL, with a library that has NCCL's functions over host memory (`tests/fake_nccl`): all but the
//! memory of a GPU, and what NCCL itself does.

pub mod fake;
pub mod host_memory;

mod communicators;
mod failures;
mod loading;
mod semantics;
mod streams;
mod workers;
