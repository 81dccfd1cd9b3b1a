//! Models against Hugging Face and under layouts: one program for all tests of this crate.
//!
//! It counts what it allocates. What needs f64 has a process of its own (`epl_testing`), as the element type of a device is a
//! whole process's; so have the counts.

use epl_comm::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

mod f32;
mod f64;
mod layouts;
