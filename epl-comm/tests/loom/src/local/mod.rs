//! The transport between threads, as far as it is modelled.

mod sync;
mod backoff;
mod memory;
mod model;
mod world;

#[path = "../../../../src/local/event_count.rs"]
mod event_count;
#[path = "../../../../src/local/board.rs"]
mod board;
#[path = "../../../../src/local/registry.rs"]
mod registry;
#[path = "../../../../src/local/membership.rs"]
mod membership;

pub use model::{Kind, Unwinds, meet};
