//! Where workers meet, under attack and when they fail; and `epl-launch`, whatever happens to the workers it has started.
#![allow(clippy::unwrap_used, missing_docs)]

use memory::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// That of `epl-comm`, which this crate is below.
#[path = "../../../epl-comm/src/memory.rs"]
#[allow(dead_code, reason = "the tests here need a part of it")]
mod memory;

mod by_hand;
#[cfg(target_os = "linux")]
mod epl_launch;
mod launched;
mod relay;
mod rendezvous;
mod strangers;
