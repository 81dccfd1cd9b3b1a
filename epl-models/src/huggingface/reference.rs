//! Inputs and outputs stored beside a model: what `transformers` computed.

use std::ops::Range;
use std::path::Path;

use burn::tensor::{DType, TensorData};

use super::error::{Error, Result};
use super::folder::Folder;
use super::in_memory;
use super::source::{Source, Stored};
use super::tensor_file::TensorFile;

/// `io.safetensors`: `input.NAME`, `logits`, `loss` and, for every weight, `grad.NAME`, where a name is that in the folder or the
/// one that `transformers` 5 has in memory.
#[derive(Clone, Debug)]
pub struct Reference {
    file: TensorFile,
    folder: Folder,
}

/// Opens the inputs and outputs stored beside a model.
///
/// # Errors
///
/// As [`Folder::open`].
pub fn read_io(folder: impl AsRef<Path>) -> Result<Reference> {
    let file = TensorFile::open(folder.as_ref().join("io.safetensors"))?;
    Ok(Reference { file, folder: Folder::open(folder)? })
}

impl Reference {
    /// An input, such as `input_ids`.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] when it is not stored; likewise for the others.
    pub fn input(&self, name: &str) -> Result<TensorData> {
        self.file.read(&format!("input.{name}"))
    }

    /// Whether an input is stored.
    pub fn has_input(&self, name: &str) -> bool {
        self.file.shape(&format!("input.{name}")).is_some()
    }

    /// An input of whole numbers, as rows.
    ///
    /// # Errors
    ///
    /// As [`input`](Self::input), and [`Error::Reference`] when it is not a table of whole numbers.
    pub fn rows(&self, name: &str) -> Result<Vec<Vec<i64>>> {
        let data = self.input(name)?;
        let shape = data.shape().to_vec();
        if shape.len() != 2 || data.dtype() != DType::I64 {
            let reason = format!("`{name}` is {shape:?} of {:?}; it should be [rows, columns] of I64", data.dtype());
            return Err(self.error(reason));
        }
        let values: Vec<i64> = data.iter().collect();
        Ok((0..shape[0]).map(|row| values[row * shape[1]..(row + 1) * shape[1]].to_vec()).collect())
    }

    /// Another output, such as `seq_relationship_logits`.
    ///
    /// # Errors
    ///
    /// As [`input`](Self::input).
    pub fn output(&self, name: &str) -> Result<TensorData> {
        self.file.read(name)
    }

    /// The logits.
    pub fn logits(&self) -> Result<TensorData> {
        self.file.read("logits")
    }

    /// The loss.
    pub fn loss(&self) -> Result<f64> {
        let loss = self.file.read("loss")?;
        loss.iter::<f64>().next().ok_or_else(|| self.error("`loss` is empty".into()))
    }

    /// The gradient of a whole parameter, as f64; zeros for weights that have none, such as an expert without tokens.
    ///
    /// # Errors
    ///
    /// As [`input`](Self::input), when the weight itself is not stored.
    pub fn gradient(&self, source: &Source) -> Result<TensorData> {
        let Some(shape) = source.shape(&self.folder) else {
            return Err(self.error(format!("no weight {}", source.names().join(" + "))));
        };
        let whole: Vec<Range<usize>> = shape.iter().map(|extent| 0..*extent).collect();
        source.read(&Gradients(self), &whole)
    }

    /// An [`Error::Reference`] about this file.
    pub fn error(&self, reason: String) -> Error {
        Error::Reference { path: self.file.path().to_path_buf(), reason }
    }
}

/// The gradients under the names of their weights.
struct Gradients<'a>(&'a Reference);

impl Stored for Gradients<'_> {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.folder.shape(name)
    }

    fn rows(&self, name: &str, rows: Range<usize>) -> Result<TensorData> {
        let stored = format!("grad.{name}");
        if self.0.file.shape(&stored).is_some() {
            return Ok(self.0.file.rows(&stored, rows)?.convert_dtype(DType::F64));
        }
        if let Some(found) = in_memory::rows(&self.0.file, name, rows.clone())? {
            return Ok(found.convert_dtype(DType::F64));
        }
        let mut shape = self.shape(name).unwrap_or_default().to_vec();
        shape[0] = rows.len();
        Ok(TensorData::zeros::<f64, _>(shape))
    }
}
