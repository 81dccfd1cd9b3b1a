//! What the standard library does not ask of the system.
//!
//! - `linux`: all of it.
//! - `elsewhere`: the same names. Where no process adopts the orphans below it one could get away, so nothing is started, which
//!   [`adopt_orphans`] says.

#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::*;
#[cfg(target_os = "linux")]
pub(crate) use linux::*;

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "there are no children"))]
pub(crate) enum Change {
    Exited(i32),
    Killed(i32),
}

/// A signal's name.
pub(crate) fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("another signal")
}
