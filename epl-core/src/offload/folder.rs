//! A folder for files, and the bound of what is mapped of them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ledger::{Counted, HoldingKind, Ledger};
use super::number::BLOCK;
use crate::error::{Error, Result};

/// What a mapping may cover beyond its window: a page at either end, of the largest size in use.
const SLACK: u64 = 2 << 16;

/// An update maps five arrays at most (parameter, gradient, three of state), of each one window and the next.
const WINDOWS: u64 = 2 * 5;

/// The least bound: every window of an update has one block of the widest element type.
const LEAST: u64 = WINDOWS * (BLOCK as u64 * 8 + SLACK);

/// Where files are made, and how much of them may be mapped at a time.
#[derive(Debug)]
pub(super) struct OffloadFolder {
    pub(super) path: PathBuf,
    resident_bytes: u64,
    mapped: AtomicU64,
    turn: Mutex<()>,
    pub(super) ledger: Ledger,
}

impl OffloadFolder {
    /// Refuses what would fail later.
    pub(super) fn new(path: &Path, resident_bytes: u64, ledger: &Ledger) -> Result<Self> {
        if resident_bytes < LEAST {
            return Err(Error::invalid(format!(
                "at most {resident_bytes} bytes of the files in {} may be in memory, and the windows of one update need \
                 {LEAST}; raise the bound to at least that",
                path.display()
            )));
        }
        if !path.is_dir() {
            return Err(Error::file(path, "this folder for offloaded arrays is missing; create it, or name another"));
        }
        tempfile::tempfile_in(path)
            .map_err(|error| Error::file(path, format!("no file can be made in this folder: {error}; name another")))?;
        let (mapped, turn) = (AtomicU64::new(0), Mutex::new(()));
        Ok(Self { path: path.to_path_buf(), resident_bytes, mapped, turn, ledger: ledger.clone() })
    }

    /// Waits until no other thread works on files of this folder: each takes as large windows as the bound allows, and
    /// moves the place in a file at which it reads.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        // Nothing is kept behind the lock that a panic could have left half done.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many elements a window has when so many arrays are mapped at once, each with its next window.
    pub(super) fn window(&self, arrays: usize, size: usize) -> usize {
        let bytes = (self.resident_bytes / (2 * arrays as u64)).saturating_sub(SLACK);
        let elements = usize::try_from(bytes / size as u64).unwrap_or(usize::MAX);
        (elements / BLOCK * BLOCK).max(BLOCK)
    }

    /// Room for a mapping of so many bytes.
    pub(super) fn room(self: &Arc<Self>, bytes: u64) -> Result<Room> {
        let with_slack = bytes.saturating_add(SLACK);
        let before = self.mapped.fetch_add(with_slack, Ordering::AcqRel);
        let room =
            Room { bytes: with_slack, folder: self.clone(), _counted: self.ledger.enter(HoldingKind::Mapped, bytes) };
        match before.checked_add(with_slack) {
            Some(all) if all <= self.resident_bytes => Ok(room),
            _ => Err(Error::invalid(format!(
                "a window of {bytes} bytes, and {SLACK} for its first and last page, beside {before} that are mapped, \
                 passes the bound of {} bytes on the files in {}; raise the bound, or take a smaller range",
                self.resident_bytes,
                self.path.display()
            ))),
        }
    }
}

/// A part of the bound; given back when dropped.
#[derive(Debug)]
pub(super) struct Room {
    bytes: u64,
    folder: Arc<OffloadFolder>,
    _counted: Counted,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.folder.mapped.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(resident_bytes: u64) -> OffloadFolder {
        OffloadFolder::new(&std::env::temp_dir(), resident_bytes, &Ledger::new()).unwrap()
    }

    #[test]
    fn windows_fill_the_bound_and_no_more() {
        for (bound, arrays, size) in [(LEAST, 5, 8), (LEAST, 4, 4), (64 << 20, 4, 4), (1 << 30, 1, 8)] {
            let elements = folder(bound).window(arrays, size);
            let windows = |elements: usize| 2 * arrays as u64 * (elements as u64 * size as u64 + SLACK);
            assert_eq!(elements % BLOCK, 0);
            assert!(windows(elements) <= bound, "{elements} elements of {size} bytes in {arrays} arrays");
            assert!(windows(elements + BLOCK) > bound, "{elements} elements of {size} bytes in {arrays} arrays");
        }
    }

    #[test]
    fn room_is_given_back_also_when_it_was_refused() {
        let folder = Arc::new(folder(LEAST));
        let half = folder.room(LEAST / 2).unwrap();
        let message = folder.room(LEAST).unwrap_err().to_string();
        assert!(message.contains(&LEAST.to_string()), "{message}");
        assert!(message.contains(&(LEAST / 2 + SLACK).to_string()), "{message}");
        drop(half);
        folder.room(LEAST - SLACK).unwrap();
        assert_eq!(folder.ledger.mapped().now, 0);
    }
}
