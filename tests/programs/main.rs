//! The programs as a user runs them, and the sources themselves.

mod built;
mod epl_ckpt;
mod epl_corpus;
mod epl_launch;
mod epl_new;
mod epl_plan;
mod epl_plot;
#[path = "../../epl-launch/tests/launch/launched.rs"]
#[allow(dead_code, reason = "most of it is what the tests of the launcher itself need")]
mod launched;
mod on_paper;
mod pages;
mod publishing;
mod readme;
mod signals;
mod source;
mod structure;
mod wrong_input;
