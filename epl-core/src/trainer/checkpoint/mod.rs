//! The checkpoints of a run: written while training goes on, resumed under any layout.
//!
//! ```text
//! OUT/checkpoints/latest              "step-200"; written last, and when a run goes back
//!                 best.json           {"step": 100, "metric": "valid_loss", "value": 1.25}
//!                 step-200/           a checkpoint, whose index keeps how the run stood and was set up
//!                          evaluation.json   what was measured of it, once that is done
//!                 .step-200.partial/  a checkpoint in the making; one that a crash left is removed by the next save
//!                 .step-200.old/      one that is being replaced; one that a crash left has its name again at the next save
//!                 .step-100.discarded/  one that is being removed; what cannot be, each save tries again
//! ```
//!
//! - `state`: where the run stood and how it was set up.
//! - `fingerprint`: what tells some bytes from others.
//! - `note`: what an evaluation found, `evaluation.json`.
//! - `folder`: the names, the marks, and which checkpoints stay.
//! - `saving`: the work of one rank, on a thread of its own.
//! - `store`: the collective work of all ranks.

mod fingerprint;
mod folder;
mod note;
mod saving;
mod state;
mod store;

pub use fingerprint::fingerprint;
pub use state::RunState;
pub use store::{CheckpointId, Checkpoints, FailedSave};
