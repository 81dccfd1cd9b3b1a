//! How a parameter is put together from stored tensors.

use std::ops::Range;

use burn::tensor::TensorData;
use epl_core::tensors::cut;

use super::error::Result;
use super::folder::Folder;

/// Tensors that can be read by name, row by row.
pub trait Stored {
    /// The shape of a tensor, if it is stored.
    fn shape(&self, name: &str) -> Option<&[usize]>;

    /// Some rows (entries of the first dim) of a stored tensor.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    fn rows(&self, name: &str, rows: Range<usize>) -> Result<TensorData>;
}

impl Stored for Folder {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        Folder::shape(self, name)
    }

    fn rows(&self, name: &str, rows: Range<usize>) -> Result<TensorData> {
        Folder::rows(self, name, rows)
    }
}

/// How a parameter is put together from stored tensors.
///
/// ```
/// # use std::{collections::BTreeMap, ops::Range};
/// # use burn::tensor::TensorData;
/// # use epl_models::huggingface::{Result, Source, source::Stored};
/// # struct Memory(Vec<usize>, Vec<f32>);
/// # impl Stored for Memory {
/// #     fn shape(&self, _name: &str) -> Option<&[usize]> { Some(&self.0) }
/// #     fn rows(&self, _name: &str, rows: Range<usize>) -> Result<TensorData> {
/// #         let row = self.0[1];
/// #         Ok(TensorData::new(self.1[rows.start * row..rows.end * row].to_vec(), [rows.len(), row]))
/// #     }
/// # }
/// # let stored = Memory(vec![2, 4], (1..9).map(|value| value as f32).collect());
/// // `stored`, such as a `Folder`, has `qkv`: [[1, 2, 3, 4], [5, 6, 7, 8]].
/// let second = Source::Part { name: "qkv".into(), part: 1, of: 2 };
/// assert_eq!(second.shape(&stored), Some(vec![2, 2]));
/// assert_eq!(second.read(&stored, &[0..2, 0..2])?, TensorData::from([[3.0_f32, 4.0], [7.0, 8.0]]));
/// // What a rank has of a weight whose outputs are split: of the file no more than these rows are read.
/// let slice = Source::Transposed("qkv".into()).read(&stored, &[0..4, 1..2])?;
/// assert_eq!(slice, TensorData::from([[5.0_f32], [6.0], [7.0], [8.0]]));
/// # Ok::<_, epl_models::huggingface::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A stored tensor as it is.
    Same(String),
    /// The weight of a PyTorch `Linear`, `[outputs, inputs]`, which Burn holds as `[inputs, outputs]`.
    Transposed(String),
    /// One of so many equal parts of a stored tensor along its last dim, such as the queries of a linear layer that makes
    /// queries, keys and values at once and is stored as Burn holds it, `[inputs, outputs]`.
    Part {
        /// The stored tensor.
        name: String,
        /// Which part.
        part: usize,
        /// How many parts there are.
        of: usize,
    },
    /// Equal parts along a new first dim, such as the experts of a layer.
    Stacked(Vec<Source>),
}

impl Source {
    /// The names of the stored tensors.
    pub fn names(&self) -> Vec<&str> {
        match self {
            Source::Same(name) | Source::Transposed(name) | Source::Part { name, .. } => vec![name],
            Source::Stacked(parts) => parts.iter().flat_map(Source::names).collect(),
        }
    }

    /// The shape of what they make; nothing when a tensor is missing, parts are of different shapes, or a tensor has no such
    /// parts.
    pub fn shape(&self, stored: &impl Stored) -> Option<Vec<usize>> {
        match self {
            Source::Same(name) => stored.shape(name).map(<[usize]>::to_vec),
            Source::Transposed(name) => stored.shape(name).map(|shape| shape.iter().rev().copied().collect()),
            Source::Part { name, of, .. } => {
                let mut shape = stored.shape(name)?.to_vec();
                let last = shape.last_mut().filter(|last| last.is_multiple_of(*of))?;
                *last /= of;
                Some(shape)
            }
            Source::Stacked(parts) => {
                let shapes: Vec<_> = parts.iter().map(|part| part.shape(stored)).collect::<Option<_>>()?;
                let first = shapes.first()?;
                let equal = shapes.iter().all(|shape| shape == first);
                equal.then(|| [&[parts.len()], first.as_slice()].concat())
            }
        }
    }

    /// Reads a range of every dim; of the stored tensors no more than the rows that the range touches.
    ///
    /// # Errors
    ///
    /// When a tensor cannot be read.
    ///
    /// # Panics
    ///
    /// When `ranges` does not lie in the [`shape`](Self::shape): a fault of the caller.
    pub fn read(&self, stored: &impl Stored, ranges: &[Range<usize>]) -> Result<TensorData> {
        match self {
            Source::Same(name) => read_as_it_is(stored, name, ranges),
            Source::Part { name, part, .. } => {
                let own = self.shape(stored).and_then(|shape| shape.last().copied()).unwrap_or(0);
                let mut inside = ranges.to_vec();
                if let Some(last) = inside.last_mut() {
                    *last = part * own + last.start..part * own + last.end;
                }
                read_as_it_is(stored, name, &inside)
            }
            Source::Transposed(name) => {
                let [inputs, outputs] = ranges else { panic!("`{name}` is transposed, so it has two dims") };
                let rows = stored.rows(name, outputs.clone())?;
                Ok(transpose(cut(rows, &[0..outputs.len(), inputs.clone()])))
            }
            Source::Stacked(parts) => {
                let parts: Vec<TensorData> = parts[ranges[0].clone()]
                    .iter()
                    .map(|part| part.read(stored, &ranges[1..]))
                    .collect::<Result<_>>()?;
                Ok(stack(&parts))
            }
        }
    }
}

fn read_as_it_is(stored: &impl Stored, name: &str, ranges: &[Range<usize>]) -> Result<TensorData> {
    let rows = stored.rows(name, ranges[0].clone())?;
    let mut inside = ranges.to_vec();
    inside[0] = 0..ranges[0].len();
    Ok(cut(rows, &inside))
}

/// `[a, b]` to `[b, a]`.
pub(super) fn transpose(data: TensorData) -> TensorData {
    let (rows, columns) = (data.shape()[0], data.shape()[1]);
    let size = data.dtype().size();
    let bytes = data.as_bytes();
    let mut turned = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            let at = (row * columns + column) * size;
            turned.extend_from_slice(&bytes[at..at + size]);
        }
    }
    TensorData::from_bytes_vec(turned, [columns, rows], data.dtype())
}

/// Equal parts along a new first dim.
fn stack(parts: &[TensorData]) -> TensorData {
    let shape = [&[parts.len()], parts[0].shape().as_slice()].concat();
    let bytes = parts.iter().flat_map(|part| part.as_bytes()).copied().collect();
    TensorData::from_bytes_vec(bytes, shape, parts[0].dtype())
}

/// Parts beside each other along their last dim.
pub(super) fn beside(parts: &[TensorData]) -> TensorData {
    let width = |part: &TensorData| part.shape().last().copied().unwrap_or(1);
    let mut shape = parts[0].shape().to_vec();
    let rows: usize = shape.iter().rev().skip(1).product();
    if let Some(last) = shape.last_mut() {
        *last = parts.iter().map(width).sum();
    }
    let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.as_bytes().len()).sum());
    for row in 0..rows {
        for part in parts {
            let length = width(part) * part.dtype().size();
            bytes.extend_from_slice(&part.as_bytes()[row * length..(row + 1) * length]);
        }
    }
    TensorData::from_bytes_vec(bytes, shape, parts[0].dtype())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One tensor `w` that counts from 0, and its double `v`.
    struct Counting(Vec<usize>);

    impl Stored for Counting {
        fn shape(&self, name: &str) -> Option<&[usize]> {
            ["w", "v"].contains(&name).then_some(&self.0)
        }

        fn rows(&self, name: &str, rows: Range<usize>) -> Result<TensorData> {
            let row: usize = self.0[1..].iter().product();
            let factor = if name == "v" { 2 } else { 1 };
            let values: Vec<i64> = (rows.start * row..rows.end * row).map(|value| (factor * value) as i64).collect();
            let mut shape = self.0.clone();
            shape[0] = rows.len();
            Ok(TensorData::new(values, shape))
        }
    }

    fn read(source: &Source, shape: &[usize], ranges: &[Range<usize>]) -> Vec<i64> {
        source.read(&Counting(shape.to_vec()), ranges).unwrap().try_to_vec().unwrap()
    }

    #[test]
    fn a_range_of_every_dim_is_read() {
        let same = Source::Same("w".into());
        assert_eq!(read(&same, &[3, 4], &[0..3, 0..4]), (0..12).collect::<Vec<_>>());
        assert_eq!(read(&same, &[3, 4], &[1..3, 1..3]), [5, 6, 9, 10]);
        assert_eq!(read(&same, &[2, 2, 2], &[0..2, 1..2, 0..1]), [2, 6]);
        let one_dim = 2..4;
        assert_eq!(read(&same, &[5], core::slice::from_ref(&one_dim)), [2, 3]);
    }

    #[test]
    fn a_linear_is_turned_after_cutting() {
        let source = Source::Transposed("w".into());
        // Stored [3, 2]: 0 1 / 2 3 / 4 5.
        assert_eq!(source.shape(&Counting(vec![3, 2])), Some(vec![2, 3]));
        assert_eq!(read(&source, &[3, 2], &[0..2, 0..3]), [0, 2, 4, 1, 3, 5]);
        assert_eq!(read(&source, &[3, 2], &[1..2, 1..3]), [3, 5]);
    }

    #[test]
    fn a_part_lies_beside_others() {
        // Stored [2, 6]: 0 1 2 3 4 5 / 6 7 8 9 10 11.
        let part = |part| Source::Part { name: "w".into(), part, of: 3 };
        assert_eq!(part(0).shape(&Counting(vec![2, 6])), Some(vec![2, 2]));
        assert_eq!(part(0).shape(&Counting(vec![2, 5])), None);
        assert_eq!(read(&part(1), &[2, 6], &[0..2, 0..2]), [2, 3, 8, 9]);
        assert_eq!(read(&part(2), &[2, 6], &[1..2, 1..2]), [11]);
        let one_dim = 0..2;
        assert_eq!(read(&part(1), &[6], core::slice::from_ref(&one_dim)), [2, 3]);
        let parts = [0, 1, 2].map(|index| part(index).read(&Counting(vec![2, 6]), &[0..2, 0..2]).unwrap());
        let whole = beside(&parts);
        assert_eq!(whole, TensorData::new((0..12_i64).collect::<Vec<_>>(), [2, 6]));
    }

    #[test]
    fn parts_are_stacked() {
        let source = Source::Stacked(vec![Source::Transposed("w".into()), Source::Transposed("v".into())]);
        assert_eq!(source.shape(&Counting(vec![1, 2])), Some(vec![2, 2, 1]));
        assert_eq!(read(&source, &[1, 2], &[0..2, 0..2, 0..1]), [0, 1, 0, 2]);
        assert_eq!(read(&source, &[1, 2], &[1..2, 1..2, 0..1]), [2]);
        let missing = Source::Stacked(vec![Source::Same("w".into()), Source::Same("x".into())]);
        assert_eq!(missing.shape(&Counting(vec![1, 2])), None);
    }
}
