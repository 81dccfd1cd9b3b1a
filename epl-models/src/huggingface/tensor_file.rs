//! One safetensors file, read tensor by tensor.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, TensorData};
use epl_core::checkpoint::burn_dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::error::{Error, Result};

/// A safetensors file whose header is known; values are read when asked for, and only those asked for.
///
/// ```
/// # use burn::tensor::TensorData;
/// # use epl_core::tensors::{Streamed, TensorInfo, write_safetensors};
/// use epl_models::huggingface::TensorFile;
///
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let path = folder.path().join("model.safetensors");
/// # let data = TensorData::from([[1.0_f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
/// # let info = TensorInfo { shape: data.shape().to_vec(), dtype: data.dtype() };
/// # let tensor = Streamed { name: "weight".into(), info, read: Box::new(|| Ok(data.clone())) };
/// # write_safetensors(&path, &[], vec![tensor])?.publish()?;
/// let file = TensorFile::open(&path)?; // [[1, 2], [3, 4], [5, 6]] under the name `weight`
/// assert_eq!((file.names(), file.shape("weight")), (vec!["weight".to_string()], Some(&[3, 2][..])));
/// assert_eq!(file.rows("weight", 1..3)?.to_vec::<f32>().expect("they are of f32"), [3.0, 4.0, 5.0, 6.0]);
/// # Ok::<_, epl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorFile {
    path: PathBuf,
    header: Metadata,
    /// Where the values begin.
    start: u64,
}

/// No header is longer than this: a first word beyond it is not a header's length.
const LONGEST_HEADER: u64 = 100_000_000;

impl TensorFile {
    /// Reads the header of a file.
    ///
    /// # Errors
    ///
    /// [`Error::File`] when it cannot be read, [`Error::Format`] when it is truncated or something else.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let (header, size) = read_header(&path).map_err(|cause| Error::File { path: path.clone(), cause })?;
        let damaged = |reason: String| Error::Format { path: path.clone(), reason };
        let header = header.map_err(damaged)?;
        let start = 8 + header.len() as u64;
        let header: Metadata = serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
        let expected = start + header.data_len() as u64;
        if size != expected {
            return Err(damaged(format!("it has {size} bytes where its header speaks of {expected}")));
        }
        Ok(Self { path, header, start })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of all tensors, in the order in which they are stored.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// The shape of a tensor, if it is stored.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.header.info(name).map(|info| info.shape.as_slice())
    }

    /// The element type of a tensor, if it is stored and Burn has that type.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        burn_dtype(self.header.info(name)?.dtype).ok()
    }

    /// A whole tensor.
    ///
    /// # Errors
    ///
    /// As [`rows`](Self::rows).
    pub fn read(&self, name: &str) -> Result<TensorData> {
        let info = self.info(name)?;
        let shape = info.shape.clone();
        self.values(info, 0..shape.iter().product(), shape)
    }

    /// Some rows (entries of the first dim) of a tensor.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] when the tensor is not stored, or of a type that Burn has not; [`Error::File`].
    ///
    /// # Panics
    ///
    /// When the tensor has no dim or not as many rows: a fault of the caller, who knows its shape.
    pub fn rows(&self, name: &str, rows: Range<usize>) -> Result<TensorData> {
        let info = self.info(name)?;
        let mut shape = info.shape.clone();
        assert!(rows.end <= shape[0], "rows {rows:?} of {} of `{name}`", shape[0]);
        let row: usize = shape[1..].iter().product();
        shape[0] = rows.len();
        self.values(info, rows.start * row..rows.end * row, shape)
    }

    fn info(&self, name: &str) -> Result<&TensorInfo> {
        let reason = || format!("it has no tensor `{name}`");
        self.header.info(name).ok_or_else(|| Error::Format { path: self.path.clone(), reason: reason() })
    }

    /// The elements in `range` of the flat tensor, as `shape`.
    fn values(&self, info: &TensorInfo, range: Range<usize>, shape: Vec<usize>) -> Result<TensorData> {
        let dtype = burn_dtype(info.dtype)
            .map_err(|error| Error::Format { path: self.path.clone(), reason: error.to_string() })?;
        let begin = self.start + (info.data_offsets.0 + range.start * dtype.size()) as u64;
        let mut bytes = vec![0; range.len() * dtype.size()];
        // Opened anew for each read, so that threads may share this value.
        let mut read = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(begin))?;
            file.read_exact(&mut bytes)
        };
        read().map_err(|cause| Error::File { path: self.path.clone(), cause })?;
        Ok(TensorData::from_bytes_vec(bytes, shape, dtype))
    }
}

/// The bytes of the header, or what is wrong with it, and the size of the file.
fn read_header(path: &Path) -> io::Result<(Result<Vec<u8>, String>, u64)> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    if size < 8 {
        return Ok((Err(format!("it has {size} bytes; a header alone takes 8")), size));
    }
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER.min(size - 8) {
        return Ok((Err(format!("its header should have {length} bytes, but the file has {size}")), size));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    Ok((Ok(header), size))
}
