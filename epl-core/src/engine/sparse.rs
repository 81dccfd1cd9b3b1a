//! The gradient of an embedding as the rows that are not zero.
//!
//! ```text
//! rank 0   rows [3, 7]      values [2, width] ─┐
//! rank 1   rows []          values [0, width] ─┼─▶ all ranks: zeros [vocabulary, width], each row added in the
//! rank 2   rows [7, 1, 0]   values [3, width] ─┘              order of the ranks
//! ```
//!
//! Ranks first tell each other how many rows they have; all then see the same counts, and decide alike whether rows
//! or the whole gradient are fewer bytes. Repeated rows of one rank were already summed by its backward.

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData};
use epl_comm::{Pending, ProcessGroup};

use super::compress::{decode, encode};
use crate::error::Result;
use crate::model::context::Context;
use crate::model::graph::rows_not_zero;
use crate::model::precision::{cast, widen};
use crate::plan::{Compression, ParamRecord};

/// Rows of a gradient `[rows, width]` that are not zero, on this rank.
pub(crate) struct SparseRows {
    gradient: Tensor<2>,
    numbers: Vec<i64>,
}

/// The sum over all ranks, on its way.
pub(crate) struct SparseSum {
    numbers: Pending<Tensor<1, Int>>,
    values: Pending<Tensor<2>>,
    shape: [usize; 2],
    dtype: DType,
    compression: Option<Compression>,
}

impl SparseRows {
    /// Finds them in a flat gradient.
    pub fn of(record: &ParamRecord, flat: Tensor<1>, context: &Context) -> Self {
        let shape = record.shape();
        let gradient = flat.reshape([shape[0], shape[1]]);
        Self { numbers: rows_not_zero(gradient.clone(), context), gradient }
    }

    /// Tells all ranks the number of rows. Returns every rank's, in their order. Collective.
    pub fn counts(&self, group: &ProcessGroup) -> Result<Vec<usize>> {
        let all = group.all_gather_counts(&[self.numbers.len() as i64])?;
        Ok(all.into_iter().map(|counts| counts[0] as usize).collect())
    }

    /// Starts the exchange; `counts` is what [`counts`](Self::counts) said. Collective.
    pub fn start(self, group: &ProcessGroup, counts: &[usize], compression: Option<Compression>) -> Result<SparseSum> {
        let (shape, dtype, device) = (self.gradient.dims(), self.gradient.dtype(), self.gradient.device());
        let data = TensorData::new(self.numbers.clone(), [self.numbers.len()]);
        let numbers = Tensor::<1, Int>::from_data(data, (&device, DType::I64));
        let values = encode(compression, self.gradient.select(0, numbers.clone()));
        Ok(SparseSum {
            numbers: group.start_all_gather_uneven(numbers, 0, counts)?,
            values: group.start_all_gather_uneven(values, 0, counts)?,
            shape,
            dtype,
            compression,
        })
    }
}

impl SparseSum {
    /// Waits; the flat, whole sum.
    pub fn wait(self) -> Result<Tensor<1>> {
        let (numbers, values) = (self.numbers.wait()?, self.values.wait()?);
        // As a whole gradient is summed: 16-bit types in f32, rounded once.
        let values = widen(decode(self.compression, values, self.dtype));
        let zeros = Tensor::<2>::zeros(self.shape, (&values.device(), values.dtype()));
        Ok(cast(zeros.select_assign(0, numbers, values, IndexingUpdateOp::Add).flatten(0, 1), self.dtype))
    }
}
