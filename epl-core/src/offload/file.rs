//! An array's bytes in a file, mapped window by window.

use core::ops::Range;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use bytemuck::Pod;
use memmap2::{MmapMut, MmapOptions};

use super::folder::{OffloadFolder, Room};
use super::ledger::{Counted, HoldingKind};
use crate::error::{Error, Result};
use crate::system::read_ahead;

/// A file without a name, of fixed length.
///
/// The system frees it when it is closed, also when the process is killed; and no name means that nobody can put
/// another file, or a link to one, in its place.
#[derive(Debug)]
pub(super) struct ArrayFile {
    file: File,
    pub(super) folder: Arc<OffloadFolder>,
    _counted: Counted,
}

impl ArrayFile {
    /// So many zeros, for which the disk has room.
    pub(super) fn zeros(folder: &Arc<OffloadFolder>, bytes: u64) -> Result<Self> {
        let mut file = tempfile::tempfile_in(&folder.path)
            .map_err(|error| Error::file(&folder.path, format!("no file can be made in this folder: {error}")))?;
        let reserved = reserve(&mut file, bytes).and_then(|()| file.sync_data().map_err(|error| (bytes, error)));
        match reserved {
            Ok(()) => {
                Ok(Self { file, folder: folder.clone(), _counted: folder.ledger.enter(HoldingKind::Files, bytes) })
            }
            Err((written, error)) => Err(Error::file(
                &folder.path,
                format!(
                    "no room for an array of {bytes} bytes: {error}, after {written}; make room, or name another folder"
                ),
            )),
        }
    }

    /// Maps a range of bytes.
    pub(super) fn map(&self, range: Range<usize>) -> Result<MappedRange> {
        let room = self.folder.room(range.len() as u64)?;
        let mut options = MmapOptions::new();
        options.offset(range.start as u64).len(range.len());
        // SAFETY: the file has no name and nobody else has it open, so nobody shortens it; its blocks are there. Who
        // may write which window is told by the borrow of the array, and ranges of one pass do not overlap.
        let map = unsafe { options.map_mut(&self.file) };
        let map = map.map_err(|error| self.failed("mapped", range.len(), &error))?;
        Ok(MappedRange { map, folder: self.folder.clone(), _room: room })
    }

    /// Reads from a place in the file; the folder's turn is taken.
    pub(super) fn read(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(at as u64)).and_then(|_| file.read_exact(bytes));
        read.map_err(|error| self.failed("read", bytes.len(), &error))
    }

    /// Writes to a place in the file; the folder's turn is taken.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) -> Result<()> {
        let written = self.file.seek(SeekFrom::Start(at as u64)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| self.failed("written", bytes.len(), &error))
    }

    fn failed(&self, what: &str, bytes: usize, error: &io::Error) -> Error {
        Error::file(&self.folder.path, format!("{bytes} bytes of an array's file cannot be {what}: {error}"))
    }
}

/// Writes zeros. A file that is only made longer gets its blocks when it is written to, and when the disk is full, a
/// write to mapped memory ends the process.
fn reserve(file: &mut impl Write, bytes: u64) -> Result<(), (u64, io::Error)> {
    let zeros = vec![0_u8; 1 << 20];
    let mut written = 0;
    while written < bytes {
        let part = (bytes - written).min(zeros.len() as u64);
        file.write_all(&zeros[..part as usize]).map_err(|error| (written, error))?;
        written += part;
    }
    Ok(())
}

/// A mapped range of a file.
#[derive(Debug)]
pub(super) struct MappedRange {
    map: MmapMut,
    folder: Arc<OffloadFolder>,
    /// After the map, so that it is given back when the memory is.
    _room: Room,
}

impl MappedRange {
    pub(super) fn slice<E: Pod>(&self) -> &[E] {
        bytemuck::cast_slice(&self.map)
    }

    pub(super) fn slice_mut<E: Pod>(&mut self) -> &mut [E] {
        bytemuck::cast_slice_mut(&mut self.map)
    }

    /// Asks the system to read the range ahead.
    pub(super) fn will_need(&self) {
        read_ahead(&self.map);
    }

    /// Writes what has changed to the file, and waits for it.
    pub(super) fn flush(&self) -> Result<()> {
        let bytes = self.map.len();
        self.map.flush().map_err(|error| {
            Error::file(&self.folder.path, format!("a window of {bytes} bytes cannot be written: {error}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Ledger;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_told_when_the_file_is_made() {
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let (written, error) = reserve(&mut full, 5000).unwrap_err();
        assert_eq!((written, error.kind()), (0, io::ErrorKind::StorageFull));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn all_blocks_are_there_before_the_file_is_mapped() {
        use std::os::unix::fs::MetadataExt;
        let folder = Arc::new(OffloadFolder::new(&std::env::temp_dir(), 64 << 20, &Ledger::new()).unwrap());
        let file = ArrayFile::zeros(&folder, 3_000_001).unwrap();
        let kept = file.file.metadata().unwrap();
        assert_eq!(kept.len(), 3_000_001);
        assert!(kept.blocks() * 512 >= 3_000_001, "{} blocks", kept.blocks());
        assert_eq!(kept.nlink(), 0, "the file has a name");
        assert_eq!(folder.ledger.files().now, 3_000_001);
        drop(file);
        assert_eq!(folder.ledger.files().now, 0);
    }

    #[test]
    fn windows_and_plain_reads_see_the_same_bytes() {
        let folder = Arc::new(OffloadFolder::new(&std::env::temp_dir(), 64 << 20, &Ledger::new()).unwrap());
        let mut file = ArrayFile::zeros(&folder, 40_000).unwrap();
        file.write(8_000, bytemuck::cast_slice(&[1.5_f64, 2.5])).unwrap();
        let mut region = file.map(8_000..8_024).unwrap();
        assert_eq!(region.slice::<f64>(), [1.5, 2.5, 0.0]);
        region.slice_mut::<f64>()[1] = -1.0;
        region.flush().unwrap();
        let mut read = [0.0_f64; 3];
        file.read(8_000, bytemuck::cast_slice_mut(&mut read)).unwrap();
        assert_eq!(read, [1.5, -1.0, 0.0]);
        assert_eq!(folder.ledger.mapped().now, 24);
        drop(region);
        assert_eq!(folder.ledger.mapped().now, 0);
    }
}
