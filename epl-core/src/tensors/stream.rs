//! Safetensors files, written tensor by tensor.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use burn::tensor::TensorData;
use safetensors::tensor::{Metadata, TensorInfo as Entry};

use super::source::TensorInfo;
use crate::checkpoint::durable::Unpublished;
use crate::checkpoint::stored_dtype;
use crate::error::{Error, Result};

/// A tensor that a file is to hold, and how to get it.
pub struct Streamed<'a> {
    /// Its name in the file.
    pub name: String,
    /// Its shape and element type.
    pub info: TensorInfo,
    /// Reads it, when its turn comes.
    pub read: Box<dyn Fn() -> Result<TensorData> + 'a>,
}

/// Writes a safetensors file, wide elements first, then by name.
///
/// The header is written first, from the shapes; then one tensor after another, so that no two of them are in memory at
/// once. The format: [huggingface.co/docs/safetensors](https://huggingface.co/docs/safetensors).
///
/// ```
/// # use burn::tensor::{DType, TensorData};
/// # use epl_core::{Error, tensors::{Streamed, TensorInfo, write_safetensors}};
/// # let folder = tempfile::tempdir().expect("there is room for a folder");
/// # let path = folder.path().join("model.safetensors");
/// let tensor = |name: &str, rows: usize| Streamed {
///     name: name.into(),
///     info: TensorInfo { shape: vec![rows, 2], dtype: DType::F32 },
///     read: Box::new(move || Ok(TensorData::zeros::<f32, _>([rows, 2]))), // only here are the values made
/// };
/// write_safetensors(&path, &[("format", "pt")], vec![tensor("b", 1), tensor("a", 3)])?.publish()?;
/// let file = std::fs::read(&path).expect("it has its name");
/// let read = safetensors::SafeTensors::deserialize(&file).expect("it is whole");
/// assert_eq!((read.len(), read.tensor("a").unwrap().shape()), (2, &[3, 2][..]));
/// # Ok::<_, Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Parameter`] when two have one name, one is of a type that the format has not, or is read as something else than
/// it was said to be; [`Error::File`] when the file cannot be written.
pub fn write_safetensors(
    path: &Path,
    metadata: &[(&str, &str)],
    mut tensors: Vec<Streamed<'_>>,
) -> Result<Unpublished<'static>> {
    tensors.sort_by(|a, b| b.info.dtype.size().cmp(&a.info.dtype.size()).then(a.name.cmp(&b.name)));
    let header = header(path, metadata, &tensors)?;
    Unpublished::write(path, |write| {
        write(&(header.len() as u64).to_le_bytes())?;
        write(&header)?;
        for Streamed { name, info, read } in &tensors {
            let data = read()?;
            let (shape, dtype) = (data.shape().to_vec(), data.dtype());
            if shape != info.shape || dtype != info.dtype {
                let reason =
                    format!("is {shape:?} of {dtype:?}, and was said to be {:?} of {:?}", info.shape, info.dtype);
                return Err(Error::Parameter { name: name.clone(), reason });
            }
            write(data.as_bytes())?;
        }
        Ok(())
    })
}

/// The header, padded so that the values are aligned.
fn header(path: &Path, metadata: &[(&str, &str)], tensors: &[Streamed<'_>]) -> Result<Vec<u8>> {
    let (mut end, mut names) = (0, HashSet::new());
    let mut entries: Vec<(String, Entry)> = Vec::with_capacity(tensors.len());
    for Streamed { name, info, .. } in tensors {
        let refused = |reason: String| Error::Parameter { name: name.clone(), reason };
        let dtype = stored_dtype(info.dtype).map_err(|error| refused(error.to_string()))?;
        if !names.insert(name) {
            return Err(refused(format!("would be twice in {}", path.display())));
        }
        let begin = end;
        end += info.bytes();
        entries.push((name.clone(), Entry { dtype, shape: info.shape.clone(), data_offsets: (begin, end) }));
    }
    let pair = |(key, value): &(&str, &str)| (key.to_string(), value.to_string());
    let metadata: HashMap<String, String> = metadata.iter().map(pair).collect();
    let metadata = Metadata::new(Some(metadata), entries).map_err(|error| Error::file(path, error))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| Error::file(path, error))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}
