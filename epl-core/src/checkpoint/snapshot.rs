//! What one rank keeps of a run at one moment, and its file.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use burn::tensor::{DType, Device, Tensor, TensorData};
use epl_comm::ProcessGroup;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::Value;

use super::blocks::{BlockWriter, FileEntry};
use super::element::stored_dtype;
use super::index::{Index, Scalar, Slice, TensorEntry};
use super::region::Region;
use crate::checkpoint::durable::{Disk, sync_folder};
use crate::error::{Error, Result};
use crate::memory::Tier;
use crate::offload::FlatArray;

/// How often it is looked whether ranks that write are done.
pub(crate) const LOOK: Duration = Duration::from_millis(2);
/// How much of what lies away from the device is in memory at once while it is written, in elements.
const WINDOW: usize = 1 << 18;

/// Some elements of a tensor.
#[derive(Debug)]
pub struct SnapshotPiece<'a> {
    /// The tensor's name: `model/<path>`, `optimizer/<path>/<field>`.
    pub name: String,
    /// Which of its elements.
    pub region: Region,
    /// Where the first of them is among the values.
    pub from: usize,
    /// They, and what else lies with them.
    pub values: TensorValues<'a>,
}

/// Values that a step changes where they lie, away from the device.
pub struct Away<'a> {
    /// How many.
    pub len: usize,
    /// Their type.
    pub dtype: DType,
    /// Where they lie.
    pub tier: Tier,
    /// Reads some of them.
    pub read: Box<dyn Fn(Range<usize>) -> Result<TensorData> + Send + 'a>,
}

impl<'a> Away<'a> {
    /// So many elements of an array, from one on.
    pub(crate) fn of(array: &'a FlatArray, start: usize, len: usize) -> Self {
        let read = Box::new(move |range: Range<usize>| array.data(start + range.start..start + range.end));
        Self { len, dtype: array.dtype(), tier: array.tier(), read }
    }
}

impl fmt::Debug for Away<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values of {} in {:?}", self.len, self.dtype.name(), self.tier)
    }
}

/// Values of a tensor.
#[derive(Debug)]
pub enum TensorValues<'a> {
    /// A copy, of any shape.
    Data(TensorData),
    /// A tensor on the host, which is copied when it is changed, and read when it is written.
    Host(Tensor<1>),
    /// Away from the device.
    Away(Away<'a>),
}

impl TensorValues<'_> {
    /// Those of a tensor: of one on a device of its own a copy.
    pub fn of(tensor: Tensor<1>) -> Self {
        match tensor.device() == Device::flex() {
            true => Self::Host(tensor),
            false => Self::Data(tensor.into_data()),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Self::Data(data) => data.dtype(),
            Self::Host(tensor) => tensor.dtype(),
            Self::Away(away) => away.dtype,
        }
    }

    /// The shape that they have.
    pub(crate) fn shape(&self) -> Vec<usize> {
        match self {
            Self::Data(data) => data.shape().to_vec(),
            Self::Host(tensor) => tensor.shape().to_vec(),
            Self::Away(away) => vec![away.len],
        }
    }

    /// A copy.
    pub(crate) fn into_data(self) -> Result<TensorData> {
        match self {
            Self::Data(data) => Ok(data),
            Self::Host(tensor) => Ok(tensor.into_data()),
            Self::Away(away) => (away.read)(0..away.len),
        }
    }
}

impl SnapshotPiece<'_> {
    fn len(&self) -> usize {
        self.region.numel() * self.values.dtype().size()
    }

    /// Gives the bytes of its elements to `write`.
    fn write(&self, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let numel = self.region.numel();
        match &self.values {
            TensorValues::Data(data) => {
                let start = self.from * data.dtype().size();
                write(&data.as_bytes()[start..start + self.len()])
            }
            TensorValues::Host(tensor) => {
                write(tensor.clone().slice([self.from..self.from + numel]).into_data().as_bytes())
            }
            TensorValues::Away(away) => {
                let end = self.from + numel;
                (self.from..end).step_by(WINDOW).try_for_each(|at| {
                    let data = (away.read)(at..(at + WINDOW).min(end)).map_err(io::Error::other)?;
                    write(data.as_bytes())
                })
            }
        }
    }

    /// The same elements, which no step changes any more.
    fn set_aside(self) -> Result<SnapshotPiece<'static>> {
        let Self { name, region, from, values } = self;
        let (from, values) = match values {
            TensorValues::Data(data) => (from, TensorValues::Data(data)),
            TensorValues::Host(tensor) => (from, TensorValues::Host(tensor)),
            TensorValues::Away(away) => (0, TensorValues::Data((away.read)(from..from + region.numel())?)),
        };
        Ok(SnapshotPiece { name, region, from, values })
    }
}

/// What a rank keeps of a run at one moment. Training may go on once it is [set aside](Self::set_aside), while it is
/// written.
#[derive(Debug, Default)]
pub struct Snapshot<'a> {
    /// Its pieces; each element of a tensor is in a piece of one rank.
    pub pieces: Vec<SnapshotPiece<'a>>,
    /// Single numbers.
    pub scalars: BTreeMap<String, Scalar>,
    /// What else there is to know, by who keeps it.
    pub state: BTreeMap<String, Value>,
}

impl Snapshot<'_> {
    /// Copies what the next step would change.
    ///
    /// # Errors
    ///
    /// When a file cannot be read.
    pub fn set_aside(self) -> Result<Snapshot<'static>> {
        let Self { pieces, scalars, state } = self;
        Ok(Snapshot {
            pieces: pieces.into_iter().map(SnapshotPiece::set_aside).collect::<Result<_>>()?,
            scalars,
            state,
        })
    }

    /// Whether some of it lies in files, as what does not fit into memory.
    pub(crate) fn lies_in_files(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(&piece.values, TensorValues::Away(away) if away.tier == Tier::Disk))
    }

    /// Writes the file of a rank and its part of the index into a folder, and syncs both.
    ///
    /// # Errors
    ///
    /// When a file cannot be written, or a tensor is of a type that cannot be stored.
    pub(crate) fn write(&self, disk: &dyn Disk, folder: &Path, rank: usize) -> Result<()> {
        let file = format!("{}.safetensors", stem(rank));
        let mut part = Index { scalars: self.scalars.clone(), state: self.state.clone(), ..Index::new() };
        for piece in &self.pieces {
            let slices = vec![Slice::of(&piece.region, &file)];
            let (dtype, shape) = (stored_dtype(piece.values.dtype())?, piece.region.whole().to_vec());
            if part.tensors.insert(piece.name.clone(), TensorEntry { dtype, shape, slices }).is_some() {
                return Err(Error::invalid(format!("a rank has two pieces of `{}`", piece.name)));
            }
        }
        if !self.pieces.is_empty() {
            let written = self.write_file(disk, &folder.join(&file))?;
            part.files.insert(file, written);
        }
        // That syncs the folder, and with it the name of the file.
        part.write(disk, folder, &part_name(rank))
    }

    /// As [`write`](Self::write), all ranks at the same time, while none waits in a collective, which has a time limit, for
    /// the disk of another. Collective.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), on this rank; when a peer failed.
    pub(crate) fn write_together(self, world: &ProcessGroup, disk: &dyn Disk, folder: &Path) -> Result<()> {
        thread::scope(|scope| {
            let rank = world.rank();
            let write = move || epl_comm::catch(|| self.write(disk, folder, rank));
            let writing = scope.spawn(move || write().unwrap_or_else(|panic| Err(panic.into())));
            while world.all_gather_counts(&[i64::from(writing.is_finished())])?.iter().any(|rank| rank[0] == 0) {
                thread::sleep(LOOK);
            }
            let lost = |_| Err(Error::invalid("the thread that writes has ended without a result"));
            writing.join().unwrap_or_else(lost)
        })
    }

    /// Writes the pieces as a file of safetensors.
    fn write_file(&self, disk: &dyn Disk, path: &Path) -> Result<FileEntry> {
        let header = self.header()?;
        let failed = |error| Error::file(path, error);
        let mut writer = BlockWriter::new(disk.create(path).map_err(failed)?);
        writer.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
        writer.write_all(&header).map_err(failed)?;
        writer.end_header();
        for piece in &self.pieces {
            piece.write(|bytes| writer.write_all(bytes)).map_err(failed)?;
        }
        writer.finish().map_err(failed)
    }

    fn header(&self) -> Result<Vec<u8>> {
        let mut end = 0;
        let mut tensors = Vec::new();
        for piece in &self.pieces {
            let start = end;
            end += piece.len();
            let (dtype, shape) = (stored_dtype(piece.values.dtype())?, Slice::stored_shape(&piece.region));
            tensors.push((piece.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) }));
        }
        let failed = |error: String| Error::invalid(format!("the pieces cannot be stored: {error}"));
        let metadata = Metadata::new(None, tensors).map_err(|error| failed(error.to_string()))?;
        let mut header = serde_json::to_vec(&metadata).map_err(|error| failed(error.to_string()))?;
        // The data begin where any element type is aligned.
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok(header)
    }
}

/// Joins the parts of all ranks to the index of the checkpoint, which is whole with it. For one rank, when all have
/// written.
///
/// # Errors
///
/// When a part is missing or does not fit, or the index cannot be written.
pub(crate) fn finish(disk: &dyn Disk, folder: &Path, ranks: usize, state: BTreeMap<String, Value>) -> Result<()> {
    let mut index = Index { state, ..Index::new() };
    for rank in 0..ranks {
        index.join(Index::read_part(folder, &part_name(rank))?)?;
    }
    // Before anything that is older is removed.
    index.check()?;
    index.write(disk, folder, super::index::NAME)?;
    for rank in 0..ranks {
        let path = part_path(folder, rank);
        disk.remove_file(&path).map_err(|error| Error::file(&path, error))?;
    }
    sync_folder(disk, folder)
}

/// Where the part of a rank is, once its file is whole.
pub(crate) fn part_path(folder: &Path, rank: usize) -> PathBuf {
    folder.join(part_name(rank))
}

fn stem(rank: usize) -> String {
    format!("rank-{rank:05}")
}

fn part_name(rank: usize) -> String {
    format!("{}.json", stem(rank))
}
