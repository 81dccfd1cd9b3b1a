//! Processes, signals and sockets of Linux.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
pub(crate) use std::os::unix::net::{UnixListener as Listener, UnixStream as Stream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub(crate) use rustix::process::Signal;
use rustix::process::{
    Pid, WaitOptions, geteuid, getpid, kill_process, kill_process_group, set_child_subreaper,
    set_parent_process_death_signal, wait,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;

use super::Change;

/// The signals that ask this process to end.
pub(crate) const END: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Makes this process the parent of its descendants whose own parents have ended, so that none gets away.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Has the system send a signal to this process when the thread that started it ends.
pub(crate) fn die_with_parent(signal: Signal) -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(signal))?)
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

/// Whether somebody may execute this file.
pub(crate) fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// A folder for this process, that nobody else may enter.
pub(crate) fn own_folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("epl-launch-").permissions(Permissions::from_mode(0o700)).tempdir()
}

/// Columns and lines of the terminal that this process writes to, if it does.
pub(crate) fn terminal_size() -> Option<[usize; 2]> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    Some([size.ws_col.into(), size.ws_row.into()])
}

/// Whether the standard output takes something now, as a terminal that is held does not.
pub(crate) fn takes_output() -> bool {
    takes(&io::stdout())
}

fn takes(output: &impl AsFd) -> bool {
    poll(&mut [PollFd::new(output, PollFlags::OUT)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// What the system says of a process: the text of its `stat`.
pub(crate) fn stat(process: u32) -> Option<Vec<u8>> {
    fs::read(format!("/proc/{process}/stat")).ok()
}

/// The numbers of all processes.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn who_is_not_read_takes_nothing() {
        let (mut reader, mut writer) = Stream::pair().expect("sockets");
        assert!(takes(&writer));
        writer.set_nonblocking(true).expect("a socket");
        reader.set_nonblocking(true).expect("a socket");
        while writer.write(&[0; 4096]).is_ok() {}
        assert!(!takes(&writer));
        while reader.read(&mut [0; 4096]).is_ok() {}
        assert!(takes(&writer));
    }
}
