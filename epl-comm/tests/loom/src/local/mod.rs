//! The transport between threads, as far as it is modelled.

mod sync;
mod patience;
mod memory;
mod model;
mod world;

#[path = "../../../../src/local/bell.rs"]
mod bell;
#[path = "../../../../src/local/board.rs"]
mod board;
#[path = "../../../../src/local/nursery.rs"]
mod nursery;
#[path = "../../../../src/local/roster.rs"]
mod roster;

pub use model::{Kind, Unwinds, meet};
