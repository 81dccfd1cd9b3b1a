//! For tests: several ranks with one call.

use crate::error::Error;
use crate::local;
use crate::process_group::ProcessGroup;

/// Runs `f` on each of `ranks` ranks and returns what each returned.
///
/// # Panics
///
/// When a rank panics or unwinds; the message names it.
pub fn run_ranks<T: Send>(ranks: usize, f: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    local::run(ranks, |group| Ok::<T, Error>(f(group))).unwrap_or_else(|(rank, error)| panic!("{rank}: {error}"))
}
