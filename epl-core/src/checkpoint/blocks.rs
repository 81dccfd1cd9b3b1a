//! Files in blocks, each with a checksum: a part of a file can be verified without the rest.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use flate2::Crc;
use serde::{Deserialize, Serialize};

use crate::checkpoint::durable::DiskFile;
use crate::error::{Error, Result};

/// The bytes of a block; the last one of a file may have fewer.
pub(super) const BLOCK: u64 = 1 << 20;

/// What an index knows of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its length.
    pub bytes: u64,
    /// How much of it comes before the tensors.
    pub header: u64,
    /// The CRC-32 of every block of 1 MiB: those of the header, then those of the tensors.
    pub blocks: Vec<u32>,
}

impl FileEntry {
    /// How many blocks it has, if what it says can be.
    pub(super) fn count(&self) -> Option<u64> {
        let tensors = self.bytes.checked_sub(self.header)?;
        Some(self.header.div_ceil(BLOCK) + tensors.div_ceil(BLOCK))
    }

    /// Where a block lies.
    fn block(&self, number: u64) -> Range<u64> {
        let of_header = self.header.div_ceil(BLOCK);
        match number.checked_sub(of_header) {
            None => number * BLOCK..((number + 1) * BLOCK).min(self.header),
            Some(number) => {
                let start = self.header + number * BLOCK;
                start..(start + BLOCK).min(self.bytes)
            }
        }
    }

    /// The block that has a byte.
    fn block_of(&self, at: u64) -> u64 {
        match at.checked_sub(self.header) {
            None => at / BLOCK,
            Some(at) => self.header.div_ceil(BLOCK) + at / BLOCK,
        }
    }
}

/// Writes a file and measures it.
pub(super) struct BlockWriter {
    file: Box<dyn DiskFile>,
    entry: FileEntry,
    block: Crc,
}

impl BlockWriter {
    pub fn new(file: Box<dyn DiskFile>) -> Self {
        Self { file, entry: FileEntry::default(), block: Crc::new() }
    }

    /// Ends the header: the tensors have blocks of their own.
    pub fn end_header(&mut self) {
        self.end_block();
        self.entry.header = self.entry.bytes;
    }

    /// Makes the file durable; what was written.
    pub fn finish(mut self) -> io::Result<FileEntry> {
        self.end_block();
        self.file.sync()?;
        Ok(self.entry)
    }

    fn end_block(&mut self) {
        if self.block.amount() > 0 {
            self.entry.blocks.push(self.block.sum());
            self.block.reset();
        }
    }
}

impl Write for BlockWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = (BLOCK - u64::from(self.block.amount())) as usize;
        let written = self.file.write(&bytes[..bytes.len().min(room)])?;
        self.block.update(&bytes[..written]);
        self.entry.bytes += written as u64;
        if u64::from(self.block.amount()) == BLOCK {
            self.end_block();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Reads a file and verifies every block that it reads of.
#[derive(Debug)]
pub(super) struct BlockReader {
    path: PathBuf,
    file: File,
    entry: FileEntry,
    /// The last block that was read, and its number.
    block: (Option<u64>, Vec<u8>),
}

impl BlockReader {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// When it is not there, or of another length than the index says.
    pub fn open(path: &Path, entry: FileEntry) -> Result<Self> {
        let failed = |error| Error::file(path, error);
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() || found.len() != entry.bytes || entry.count() != Some(entry.blocks.len() as u64) {
            return Err(Error::file(
                path,
                format!(
                    "the file has {} bytes, and the index says {} in {} blocks: it is damaged; take another checkpoint",
                    found.len(),
                    entry.bytes,
                    entry.blocks.len()
                ),
            ));
        }
        Ok(Self { path: path.to_path_buf(), file, entry, block: (None, Vec::new()) })
    }

    /// The length of the file.
    pub fn len(&self) -> u64 {
        self.entry.bytes
    }

    /// Reads what lies at `at`, all that `into` has room for.
    ///
    /// # Errors
    ///
    /// When the file ends before, cannot be read, or a block has another checksum.
    pub fn read(&mut self, at: u64, mut into: &mut [u8]) -> Result<()> {
        let end = at.checked_add(into.len() as u64).filter(|end| *end <= self.entry.bytes);
        if end.is_none() {
            return Err(Error::file(
                &self.path,
                format!("{} bytes at {at} are beyond its end at {}", into.len(), self.entry.bytes),
            ));
        }
        let mut at = at;
        while !into.is_empty() {
            let number = self.entry.block_of(at);
            let start = (at - self.entry.block(number).start) as usize;
            let block = self.block(number)?;
            let count = (block.len() - start).min(into.len());
            let (first, rest) = into.split_at_mut(count);
            first.copy_from_slice(&block[start..start + count]);
            (into, at) = (rest, at + count as u64);
        }
        Ok(())
    }

    fn block(&mut self, number: u64) -> Result<&[u8]> {
        if self.block.0 != Some(number) {
            self.block.0 = None;
            let Range { start, end } = self.entry.block(number);
            let (len, expected) = ((end - start) as usize, self.entry.blocks[number as usize]);
            self.block.1.resize(len, 0);
            let failed = |error| Error::file(&self.path, error);
            self.file.seek(SeekFrom::Start(start)).map_err(failed)?;
            self.file.read_exact(&mut self.block.1).map_err(failed)?;
            let mut crc = Crc::new();
            crc.update(&self.block.1);
            if crc.sum() != expected {
                return Err(Error::file(
                    &self.path,
                    format!(
                        "the block of {len} bytes at {start} has checksum {:08x}, and the index says {:08x}: it is \
                         damaged; take another checkpoint",
                        crc.sum(),
                        expected
                    ),
                ));
            }
            self.block.0 = Some(number);
        }
        Ok(&self.block.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::durable::{Disk, FileSystem};

    const BLOCK: usize = super::BLOCK as usize;

    /// A file whose header has so many of the bytes.
    fn written(path: &Path, bytes: &[u8], header: usize) -> FileEntry {
        let mut writer = BlockWriter::new(FileSystem.create(path).unwrap());
        bytes[..header].chunks(700_001).for_each(|chunk| writer.write_all(chunk).unwrap());
        writer.end_header();
        bytes[header..].chunks(700_001).for_each(|chunk| writer.write_all(chunk).unwrap());
        writer.finish().unwrap()
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    #[test]
    fn any_part_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for len in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17] {
            for header in [0, len / 2, len] {
                let all = bytes(len);
                let entry = written(&path, &all, header);
                let blocks = header.div_ceil(BLOCK) + (len - header).div_ceil(BLOCK);
                assert_eq!((entry.bytes, entry.header), (len as u64, header as u64));
                assert_eq!((entry.blocks.len(), entry.count()), (blocks, Some(blocks as u64)));
                let mut reader = BlockReader::open(&path, entry).unwrap();
                for (start, end) in [(0, len), (len / 3, len / 2), (len.saturating_sub(5), len)] {
                    let mut part = vec![0; end - start];
                    reader.read(start as u64, &mut part).unwrap();
                    assert_eq!(part, all[start..end]);
                }
                assert!(reader.read(len as u64, &mut [0]).unwrap_err().to_string().contains("beyond its end"));
            }
        }
    }

    #[test]
    fn only_what_is_read_is_verified() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut all = bytes(2 * BLOCK);
        let entry = written(&path, &all, 100);
        all[103] ^= 16;
        std::fs::write(&path, &all).unwrap();
        let mut reader = BlockReader::open(&path, entry.clone()).unwrap();
        reader.read(10, &mut [0; 90]).unwrap();
        reader.read(100 + BLOCK as u64, &mut [0]).unwrap();
        let message = reader.read(100 + BLOCK as u64 - 1, &mut [0]).unwrap_err().to_string();
        assert!(message.contains("checksum") && message.contains("at 100 has"), "{message}");
        std::fs::write(&path, &all[1..]).unwrap();
        assert!(BlockReader::open(&path, entry).unwrap_err().to_string().contains("damaged"));
    }
}
