//! What the standard library does not ask of the system.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, WaitOptions, geteuid, kill_process, kill_process_group, wait};
use signal_hook::low_level;

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Exited(i32),
    Killed(i32),
}

/// Makes this process the parent of its descendants whose own parents have ended, so that none gets away.
#[cfg(target_os = "linux")]
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Other systems have nothing of the kind, so that nothing is started there.
#[cfg(not(target_os = "linux"))]
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Err(io::Error::other("only Linux can; run the program itself, with its ranks as threads"))
}

/// Has the system send a signal to this process when the thread that started it ends.
pub(crate) fn die_with_parent(signal: Signal) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(signal))?;
    let _ = signal;
    Ok(())
}

/// A command in a process group of its own, which gets a signal when this thread ends.
pub(crate) fn bound(command: &mut Command, signal: Signal) -> &mut Command {
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes one system call that takes numbers only; it allocates nothing.
    unsafe { command.pre_exec(move || die_with_parent(signal)) }
}

fn pid(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}

/// Sends a signal to a process. One that is not there any more is no failure.
pub(crate) fn send(process: u32, signal: Signal) {
    let _ = pid(process).map(|process| kill_process(process, signal));
}

/// Sends a signal, by its number, to a process group.
pub(crate) fn send_group(group: u32, signal: i32) {
    let _ = pid(group).zip(Signal::from_named_raw(signal)).map(|(group, signal)| kill_process_group(group, signal));
}

/// The next child that has ended, adopted ones too; none where there is none.
pub(crate) fn next_change() -> Option<(u32, Change)> {
    let (child, status) = wait(WaitOptions::NOHANG).ok()??;
    let exited = status.exit_status().map(Change::Exited);
    let change = exited.or(status.terminating_signal().map(Change::Killed))?;
    Some((child.as_raw_nonzero().get().cast_unsigned(), change))
}

/// Whether this process is the system's administrator.
pub(crate) fn is_root() -> bool {
    geteuid().is_root()
}

/// A signal's name.
pub(crate) fn signal_name(signal: i32) -> &'static str {
    low_level::signal_name(signal).unwrap_or("another signal")
}
