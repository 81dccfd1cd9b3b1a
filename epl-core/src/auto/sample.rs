//! A batch to measure with.

use core::fmt;

use burn::tensor::Device;

use crate::data::TrainData;
use crate::error::Result;

/// The rows of a step, over all replicas, and what makes a batch of some of them.
pub struct Sample<'a, B> {
    rows: usize,
    batch: Box<dyn FnMut(usize, &Device) -> Result<B> + 'a>,
}

impl<B> fmt::Debug for Sample<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl<'a, B> Sample<'a, B> {
    /// Of steps with so many rows; `batch` makes one of a number of rows.
    pub fn new(rows: usize, mut batch: impl FnMut(usize, &Device) -> B + 'a) -> Self {
        Self { rows, batch: Box::new(move |rows, device| Ok(batch(rows, device))) }
    }

    /// The first global batch of some data.
    ///
    /// # Errors
    ///
    /// When the data has none.
    pub fn of<I: 'static>(data: &'a TrainData<I, B>) -> Result<Self>
    where
        B: 'static,
    {
        let first = data.sampler().batch(0)?;
        let rows = first.indices.len();
        let batch = move |wanted: usize, device: &Device| {
            // Again from its beginning where more are wanted than there are.
            let taken: Vec<usize> = (0..wanted).map(|row| row % rows).collect();
            Ok(data.source().micro_batch(&first, &taken, 0, device)?.batch)
        };
        Ok(Self { rows, batch: Box::new(batch) })
    }

    /// Rows of a step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A batch of so many rows.
    pub(super) fn batch(&mut self, rows: usize, device: &Device) -> Result<B> {
        (self.batch)(rows, device)
    }
}
