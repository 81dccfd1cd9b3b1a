//! What the standard library does not ask of the system.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Exited(i32),
    Killed(i32),
    Stopped,
}

fn checked(result: i32) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes this process the parent of its descendants whose own parents have ended, so that none gets away.
#[cfg(target_os = "linux")]
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    checked(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })
}

/// Other systems have nothing of the kind, so that nothing is started there.
#[cfg(not(target_os = "linux"))]
pub fn adopt_orphans() -> io::Result<()> {
    checked(0).and(Err(io::Error::other("only Linux can; run the program itself, with its ranks as threads")))
}

/// Has the system send a signal to this process when the thread that started it ends.
pub fn die_with_parent(signal: i32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    // SAFETY: the call takes numbers only.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0) })?;
    let _ = signal;
    Ok(())
}

/// A command in a process group of its own, which gets a signal when this thread ends.
pub fn bound(command: &mut Command, signal: i32) -> &mut Command {
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes one system call that takes numbers only; it allocates nothing.
    unsafe { command.pre_exec(move || die_with_parent(signal)) }
}

/// Sends a signal to a process. One that is not there any more is no failure.
pub fn send(process: u32, signal: i32) {
    if let Ok(process) = i32::try_from(process) {
        // SAFETY: the call takes numbers only.
        unsafe { libc::kill(process, signal) };
    }
}

/// Sends a signal to a process group.
pub fn send_group(group: u32, signal: i32) {
    if let Ok(group) = i32::try_from(group) {
        // SAFETY: the call takes numbers only.
        unsafe { libc::killpg(group, signal) };
    }
}

/// The next child of which something is to be told, adopted ones too; none where there is nothing.
pub fn next_change() -> Option<(u32, Change)> {
    let mut status = 0;
    // SAFETY: the pointer is to a number that lives as long as the call.
    let child = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED) };
    let child = u32::try_from(child).ok().filter(|child| *child > 0)?;
    let change = if libc::WIFEXITED(status) {
        Change::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else {
        Change::Stopped
    };
    Some((child, change))
}

/// Whether this process is the system's administrator.
pub fn is_root() -> bool {
    // SAFETY: the call takes nothing.
    unsafe { libc::geteuid() == 0 }
}

/// A signal's name.
pub fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGTERM => "SIGTERM",
        _ => "another signal",
    }
}
