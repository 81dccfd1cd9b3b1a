//! Whole runs of the trainer.
#![allow(clippy::unwrap_used)] // Also in the functions that the tests share.

mod best;
mod evaluating;
mod failing;
mod files;
mod hooks;
mod net;
mod rates;
mod replicas;
mod resuming;
mod saving;
mod skipping;
mod warming_up;
mod writing;
