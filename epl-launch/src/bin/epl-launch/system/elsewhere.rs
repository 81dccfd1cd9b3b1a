//! What there is where nothing can be started: nothing.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;

use signal_hook::consts::{SIGINT, SIGTERM};
use tempfile::TempDir;

use super::Change;

/// The signals that ask this process to end.
pub(crate) const END: [i32; 2] = [SIGINT, SIGTERM];

/// A signal to another process, which cannot be sent.
#[derive(Clone, Copy)]
pub(crate) struct Signal;

impl Signal {
    pub const TERM: Self = Self;
    pub const CONT: Self = Self;
    pub const KILL: Self = Self;
}

fn unsupported() -> io::Error {
    io::Error::other("only Linux can; run the program itself, with its ranks as threads")
}

/// Refuses.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Err(unsupported())
}

pub(crate) fn die_with_parent(_signal: Signal) -> io::Result<()> {
    Err(unsupported())
}

pub(crate) fn bound(command: &mut Command, _signal: Signal) -> &mut Command {
    command
}

pub(crate) fn send(_process: u32, _signal: Signal) {}

pub(crate) fn send_group(_group: u32, _signal: i32) {}

pub(crate) fn next_change() -> Option<(u32, Change)> {
    None
}

pub(crate) fn is_root() -> bool {
    false
}

pub(crate) fn is_executable(path: &Path) -> bool {
    path.is_file()
}

pub(crate) fn own_folder() -> io::Result<TempDir> {
    Err(unsupported())
}

pub(crate) fn terminal_size() -> Option<[usize; 2]> {
    None
}

/// Nobody tells.
pub(crate) fn takes_output() -> bool {
    true
}

pub(crate) fn stat(_process: u32) -> Option<Vec<u8>> {
    None
}

pub(crate) fn processes() -> impl Iterator<Item = u32> {
    std::iter::empty()
}

/// An end of a connection between processes of this machine.
pub(crate) struct Stream;

impl Stream {
    pub fn connect(_path: impl AsRef<Path>) -> io::Result<Self> {
        Err(unsupported())
    }

    pub fn try_clone(&self) -> io::Result<Self> {
        Err(unsupported())
    }
}

impl Read for Stream {
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(unsupported())
    }
}

impl Write for Stream {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(unsupported())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(unsupported())
    }
}

/// Where such connections are made.
pub(crate) struct Listener;

impl Listener {
    pub fn bind(_path: impl AsRef<Path>) -> io::Result<Self> {
        Err(unsupported())
    }

    pub fn incoming(&self) -> impl Iterator<Item = io::Result<Stream>> {
        std::iter::empty()
    }
}
