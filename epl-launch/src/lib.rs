//! Workers of a run: who each of them is, and where they meet. Without tensors.
//!
//! A *worker* is a process that drives one rank or more. What starts workers, such as the program `epl-launch` of this
//! crate, tells each by its environment which one it is ([`Worker`]); there they also read where they meet
//! ([`rendezvous`]), and then tell each other small things under names ([`Store`]). What their ranks do they tell whoever
//! [watches](watch).
//!
//! ```text
//!  epl-launch ──▶ environment ──▶ Worker ── meet ──▶ Meeting: Client ◀─── TCP ───▶ Server
//!                                                         │ Store: set, get, forget
//!                                                         └ the first failure of any worker
//! ```
//!
//! # Features
//!
#![doc = document_features::document_features!()]
#![warn(missing_docs)]

mod error;
mod system;
mod store;
pub mod rendezvous;
mod worker;
pub mod watch;

pub use error::{Error, Result};
pub use store::{MemoryStore, Store};
pub use system::host_name;
pub use worker::{Carrier, Launch, Meeting, MeetingPoint, Source, Worker};
