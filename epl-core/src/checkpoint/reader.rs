//! Reads a checkpoint, each rank what it needs of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use burn::tensor::{Bytes, TensorData};
use safetensors::tensor::{Metadata, TensorInfo};

use super::blocks::{BlockReader, FileEntry};
use super::index::{Index, NAME, Slice, TensorEntry};
use super::region::{Overlap, Region, numel_of, shared};
use crate::checkpoint::durable::found;
use crate::error::{Error, Result};

/// The longest header of a file that is read, as in safetensors' own reader.
const LONGEST_HEADER: u64 = 100_000_000;

/// The bytes that are verified at once.
const SCRATCH: usize = 1 << 20;

/// A checkpoint that was opened: its index is checked against itself and against the files.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    index: Index,
    files: BTreeMap<String, StoredFile>,
    /// The file that was read last: there may be more of them than a process may open.
    last: Mutex<Option<(String, BlockReader)>>,
}

/// What is known of a file.
#[derive(Debug)]
struct StoredFile {
    /// Where the data begin.
    start: u64,
    header: Metadata,
}

impl Checkpoint {
    /// Where the checkpoint of this name is, if it is one: [`open`](Self::open) looks there, too.
    pub fn find(folder: impl AsRef<Path>) -> Option<PathBuf> {
        Some(found(folder.as_ref())).filter(|folder| folder.join(NAME).is_file())
    }

    /// Opens the checkpoint in a folder; after a crash while another one took its place, that which was there. No tensor is
    /// read yet.
    ///
    /// # Errors
    ///
    /// When there is none, or what it says of itself cannot be: the file, and the tensor.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = found(folder.as_ref());
        let index = Index::read(&folder)?;
        let open = |(name, entry): (&String, &FileEntry)| {
            Ok((name.clone(), StoredFile::read(&folder.join(name), entry.clone())?))
        };
        let files: BTreeMap<_, _> = index.files.iter().map(open).collect::<Result<_>>()?;
        let checkpoint = Self { folder, index, files, last: Mutex::new(None) };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it holds.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// What it knows of a tensor.
    ///
    /// # Errors
    ///
    /// When it has none of this name.
    pub fn entry(&self, name: &str) -> Result<&TensorEntry> {
        self.index.tensors.get(name).ok_or_else(|| Error::file(&self.folder, format!("it has no tensor `{name}`")))
    }

    /// Reads a whole tensor.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_whole(&self, name: &str) -> Result<TensorData> {
        let shape = self.entry(name)?.shape.clone();
        let data = self.read(name, &Region::all(&shape))?;
        let dtype = data.dtype();
        Ok(TensorData::from_bytes(data.into_parts().0, shape, dtype))
    }

    /// Reads the elements of a region, flat: only the slices that have some of them, and of these only the blocks.
    ///
    /// # Errors
    ///
    /// When it has no such tensor, one of another shape, or a file is damaged.
    pub fn read(&self, name: &str, region: &Region) -> Result<TensorData> {
        let entry = self.entry(name)?;
        if region.whole() != entry.shape {
            return Err(Error::Parameter {
                name: name.to_string(),
                reason: format!(
                    "has shape {:?} in {}, and {:?} is asked for; load it into the model that saved it",
                    entry.shape,
                    self.folder.display(),
                    region.whole()
                ),
            });
        }
        let size = entry.dtype.bitsize() / 8;
        let mut bytes = room(region.numel(), size);
        for slice in &entry.slices {
            let stored = entry.region(slice)?;
            let at = self.file(&slice.file)?.offset_of(name)?;
            // Nothing is opened for what lies elsewhere.
            let mut shared = shared(region, &stored).peekable();
            if shared.peek().is_none() {
                continue;
            }
            self.with_reader(&slice.file, |reader| {
                shared.try_for_each(|Overlap { first, second, len }| {
                    let into = &mut bytes[first * size..(first + len) * size];
                    reader.read(at + (second * size) as u64, into).map_err(|error| of_tensor(name, &error))
                })
            })?;
        }
        Ok(TensorData::from_bytes(bytes, [region.numel()], entry.burn_dtype()?))
    }

    /// Verifies every block of every file.
    ///
    /// # Errors
    ///
    /// The first one that is damaged, and the tensor that lies there.
    pub fn verify(&self) -> Result<()> {
        self.files.iter().try_for_each(|(name, file)| self.with_reader(name, |reader| file.verify(reader)))
    }

    fn file(&self, name: &str) -> Result<&StoredFile> {
        self.files.get(name).ok_or_else(|| Error::file(self.folder.join(name), "the index does not name it"))
    }

    /// Reads of a file, which is opened if it is not the last one.
    fn with_reader<T>(&self, name: &str, read: impl FnOnce(&mut BlockReader) -> Result<T>) -> Result<T> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *last {
            Some((open, reader)) if open == name => read(reader),
            last => {
                let entry = self.index.files.get(name).cloned().unwrap_or_default();
                let (_, reader) = last.insert((name.to_string(), BlockReader::open(&self.folder.join(name), entry)?));
                read(reader)
            }
        }
    }

    /// Whether the headers of the files say what the index says.
    fn check(&self) -> Result<()> {
        let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, entry) in &self.index.tensors {
            for slice in &entry.slices {
                let file = self.file(&slice.file)?;
                let checked = match named.entry(&slice.file).or_default().insert(name) {
                    true => file.check_slice(name, entry, slice),
                    false => Err("two of its slices are said to be in this file".to_string()),
                };
                checked.map_err(|reason| self.damaged(&slice.file, name, &reason))?;
            }
        }
        for (file_name, file) in &self.files {
            let named = named.remove(file_name.as_str()).unwrap_or_default();
            if let Some(name) = file.header.offset_keys().iter().find(|name| !named.contains(name.as_str())) {
                return Err(self.damaged(file_name, name, "it is in this file, and the index does not say so"));
            }
        }
        Ok(())
    }

    fn damaged(&self, file: &str, tensor: &str, reason: &str) -> Error {
        Error::file(
            self.folder.join(file),
            format!("tensor `{tensor}`: {reason}: it is damaged; take another checkpoint"),
        )
    }
}

impl StoredFile {
    fn read(path: &Path, entry: FileEntry) -> Result<Self> {
        let damaged = |reason: String| Error::file(path, format!("{reason}: it is damaged; take another checkpoint"));
        let header_end = entry.header;
        let mut reader = BlockReader::open(path, entry)?;
        let mut length = [0; 8];
        reader.read(0, &mut length)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER.min(reader.len().saturating_sub(8)) {
            return Err(damaged(format!("a header of {length} bytes in a file of {}", reader.len())));
        }
        let mut header = vec![0; length as usize];
        reader.read(8, &mut header)?;
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(format!("no header of safetensors: {error}")))?;
        let start = 8 + length;
        if start != header_end || start + header.data_len() as u64 != reader.len() {
            return Err(damaged(format!(
                "its header of {start} bytes speaks of {} bytes of tensors, and the index of {header_end} and {}",
                header.data_len(),
                reader.len() - header_end
            )));
        }
        Ok(Self { start, header })
    }

    /// Where a tensor's bytes begin.
    fn offset_of(&self, name: &str) -> Result<u64> {
        let info = self.info(name).map_err(Error::invalid)?;
        Ok(self.start + info.data_offsets.0 as u64)
    }

    /// Reads all tensors; the header was read when it was opened.
    fn verify(&self, reader: &mut BlockReader) -> Result<()> {
        let mut scratch = vec![0; SCRATCH.min(reader.len() as usize)];
        for name in self.header.offset_keys() {
            let Some((start, end)) = self.header.info(&name).map(|info| info.data_offsets) else { continue };
            for at in (start..end).step_by(SCRATCH) {
                let part = &mut scratch[..SCRATCH.min(end - at)];
                reader.read(self.start + at as u64, part).map_err(|error| of_tensor(&name, &error))?;
            }
        }
        Ok(())
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, String> {
        self.header.info(name).ok_or_else(|| format!("`{name}` is not in the file that the index names"))
    }

    fn check_slice(&self, name: &str, entry: &TensorEntry, slice: &Slice) -> Result<(), String> {
        let info = self.info(name)?;
        let region = entry.region(slice).map_err(|error| error.to_string())?;
        let shape = Slice::stored_shape(&region);
        match info.dtype == entry.dtype && numel_of(&info.shape) == Some(region.numel()) && info.shape == shape {
            true => Ok(()),
            false => Err(format!(
                "the file has {:?} of {:?}, and the index says {:?} of {shape:?}",
                info.dtype, info.shape, entry.dtype
            )),
        }
    }
}

/// Room for elements of so many bytes, aligned as they are: what is not is copied once more.
fn room(numel: usize, size: usize) -> Bytes {
    match size {
        8 => Bytes::from_elems(vec![0_u64; numel]),
        4 => Bytes::from_elems(vec![0_u32; numel]),
        2 => Bytes::from_elems(vec![0_u16; numel]),
        _ => Bytes::from_elems(vec![0_u8; numel * size]),
    }
}

fn of_tensor(name: &str, error: &Error) -> Error {
    match error {
        Error::File { path, reason } => {
            Error::File { path: path.clone(), reason: format!("tensor `{name}`: {reason}") }
        }
        other => Error::invalid(format!("tensor `{name}`: {other}")),
    }
}
