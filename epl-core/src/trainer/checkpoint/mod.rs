//! Saving and resuming under the same layout. (Checkpoints that belong to no layout will replace this.)
//!
//! ```text
//! OUT/checkpoints/latest              "step-200"; written last
//!                 best.json           {"step": 100, "metric": "valid_loss", "value": 1.25}
//!                 step-200/state.json step, samples drawn, what must not change, configuration
//!                          evaluation.json   what was measured of it, once that is done
//!                          rank-0/    what the engine writes, and files.json: their sizes and checksums
//!                          rank-1/
//!                 .step-200.partial/  a checkpoint in the making; one that a crash left is removed by the next save
//! ```
//!
//! - `differences`: where two configurations disagree.
//! - `state`: where the run stood and how it was set up, `state.json`.
//! - `seal`: whether the files are whole, `files.json`.
//! - `note`: what an evaluation found, `evaluation.json`.
//! - `folder`: the names, the marks, and which checkpoints stay.
//! - `store`: the collective work of all ranks.

mod differences;
mod folder;
mod note;
mod seal;
mod state;
mod store;

pub use seal::fingerprint;
pub use state::Saved;
pub use store::{Checkpoints, Which};
