//! The programs as a user runs them, and the sources themselves.

mod epl_ckpt;
mod epl_launch;
mod launched;
mod memory;
mod signals;
mod source;
mod structure;
mod wrong_input;
