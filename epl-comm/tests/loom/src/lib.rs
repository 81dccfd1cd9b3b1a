//! The board of `epl-comm`'s transport between threads, run under loom in all orders of its steps that matter.
//!
//! What is modelled is the source itself: `board.rs`, `event_count.rs`, `membership.rs` and what they need. What stands around it is
//! made small: `sync` gives loom's types, `backoff` lets a waiter look once before it sleeps, `memory` is a buffer that
//! notices who looks at it when, and `world` knows of failures and ends, without limits of time.
//!
//! `model` has the lives of the members; `tests/board.rs` runs them.
#![allow(dead_code, reason = "only what the board needs is used")]

#[path = "../../../src/error.rs"]
mod error;
mod host;
mod local;
mod operation;
#[path = "../../../src/rank.rs"]
mod rank;

pub use local::{Kind, Unwinds, meet};

// `error.rs` has a variant for the errors of launching, which no board has.
extern crate self as epl_launch;

/// In place of `epl_launch::Error`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none")]
pub struct Error;

mod transport {
    pub(crate) fn link_name(group: &str, from: usize, to: usize) -> String {
        format!("{group}, {from} to {to}")
    }
}
