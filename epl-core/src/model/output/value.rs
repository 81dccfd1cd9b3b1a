//! What the micro-batches of one replica make.

use burn::tensor::{DType, Shape, TensorData};

use crate::error::{Error, Result};
use crate::model::flat::Flat;

/// How the values of several micro-batches make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Their mean, in which each counts as often as its micro-batch has samples. Of floats of one shape.
    Mean,
    /// Their sum. Of one shape.
    Sum,
    /// One after the other along the first dim, which may differ, in the order of the samples.
    Concat,
}

/// A value as it is handed out.
#[derive(Debug)]
pub(crate) enum OutputValue {
    Read(TensorData),
    /// On a device, to be read with others.
    Noted(Box<Flat>, Shape),
}

/// What one micro-batch gave.
#[derive(Debug)]
pub(crate) struct MicroBatchOutput<D = TensorData> {
    /// The pass it came from.
    pub pass: u64,
    /// Its first sample.
    pub first: u64,
    pub samples: usize,
    pub data: D,
}

impl MicroBatchOutput<OutputValue> {
    /// With its values.
    ///
    /// # Panics
    ///
    /// When they are still to be read: a fault of this crate.
    pub fn read(self) -> MicroBatchOutput {
        let Self { pass, first, samples, data } = self;
        match data {
            OutputValue::Read(data) => MicroBatchOutput { pass, first, samples, data },
            OutputValue::Noted(..) => unreachable!("outputs are read before they are taken"),
        }
    }
}

/// The value of some micro-batches. Sums are kept in f64 and rounded once.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub dtype: DType,
    /// Of a concatenation, those behind the first dim.
    pub dims: Vec<usize>,
    pub content: Content,
}

/// Pieces of a concatenation: the number of its first sample, and its bytes.
pub(super) type Pieces = Vec<(u64, Vec<u8>)>;

#[derive(Clone, Debug)]
pub(super) enum Content {
    /// Sums, of a mean each multiplied by its weight, and the weight.
    Sums(Vec<f64>, f64),
    /// Those of a concatenation.
    Pieces(Pieces),
}

impl Value {
    /// The value of these parts; none of none.
    pub fn of(name: &str, combine: Combine, parts: Vec<MicroBatchOutput>) -> Result<Option<Self>> {
        let Some(first) = parts.first() else { return Ok(None) };
        let inner =
            |part: &MicroBatchOutput| part.data.shape().to_vec()[usize::from(combine == Combine::Concat)..].to_vec();
        let (dtype, dims) = (first.data.dtype(), inner(first));
        if combine == Combine::Mean && !dtype.is_float() {
            return Err(Error::invalid(format!(
                "the output `{name}` of {dtype:?} is to be averaged; make floats of it, or sum it"
            )));
        }
        if let Some(other) = parts.iter().find(|part| inner(part) != dims || part.data.dtype() != dtype) {
            return Err(unlike(name, combine, (dtype, &dims), (other.data.dtype(), &inner(other))));
        }
        let content = match combine {
            Combine::Concat => {
                Content::Pieces(parts.iter().map(|part| (part.first, part.data.as_bytes().to_vec())).collect())
            }
            Combine::Sum | Combine::Mean => {
                let mut sums = vec![0.0; dims.iter().product()];
                let mut weight = 0.0;
                for part in &parts {
                    let factor = if combine == Combine::Mean { part.samples as f64 } else { 1.0 };
                    weight += factor;
                    sums.iter_mut().zip(part.data.iter::<f64>()).for_each(|(sum, value)| *sum += value * factor);
                }
                Content::Sums(sums, weight)
            }
        };
        Ok(Some(Self { dtype, dims, content }))
    }

    /// The merged tensor.
    pub fn finish(self, combine: Combine) -> TensorData {
        match self.content {
            Content::Sums(mut sums, weight) => {
                if combine == Combine::Mean {
                    sums.iter_mut().for_each(|sum| *sum /= weight);
                }
                TensorData::new(sums, self.dims).convert_dtype(self.dtype)
            }
            Content::Pieces(mut pieces) => {
                pieces.sort_by_key(|(first, _)| *first);
                let bytes: Vec<u8> = pieces.into_iter().flat_map(|(_, bytes)| bytes).collect();
                let row = self.dims.iter().product::<usize>() * self.dtype.size();
                let rows = bytes.len().checked_div(row).unwrap_or(0);
                TensorData::from_bytes_vec(bytes, [&[rows], &self.dims[..]].concat(), self.dtype)
            }
        }
    }
}

/// Two values that cannot be combined.
pub(super) fn unlike(name: &str, combine: Combine, a: (DType, &[usize]), b: (DType, &[usize])) -> Error {
    let what = if combine == Combine::Concat { "dims behind the first" } else { "dims" };
    Error::invalid(format!(
        "the output `{name}` has {what} {:?} of {:?} in one micro-batch and {:?} of {:?} in another; hand out the same \
         from each",
        a.1, a.0, b.1, b.0
    ))
}
