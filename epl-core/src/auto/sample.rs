//! A batch to measure with.

use core::fmt;

use burn::tensor::Device;

use crate::data::TrainData;
use crate::error::{Error, Result};
use crate::model::context::Context;

/// The rows of a step, over all replicas, and what makes a batch of some of them.
pub struct Sample<'a, B> {
    rows: usize,
    /// The replica whose rows a batch has, where its files are read by it alone.
    replica: usize,
    batch: Box<MakeBatch<'a, B>>,
}

/// Makes a batch of so many rows, of those that a replica can read.
type MakeBatch<'a, B> = dyn FnMut(usize, usize, &Device) -> Result<B> + 'a;

impl<B> fmt::Debug for Sample<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample").field("rows", &self.rows).finish_non_exhaustive()
    }
}

impl<'a, B> Sample<'a, B> {
    /// Of steps with so many rows; `batch` makes one of a number of rows, which are like those of the data: as long, and with as many
    /// different tokens.
    pub fn new(rows: usize, mut batch: impl FnMut(usize, &Device) -> B + 'a) -> Self {
        Self { rows, replica: 0, batch: Box::new(move |rows, _, device| Ok(batch(rows, device))) }
    }

    /// The first global batch of some data; of files that replicas divide, what the rank's own replica has of it.
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
        let batch = move |wanted: usize, replica: usize, device: &Device| {
            let own: Vec<usize> = match &first.owned {
                None => (0..rows).collect(),
                Some(owned) => owned.get(replica).map(|owned| owned.rows.clone()).unwrap_or_default(),
            };
            if own.is_empty() {
                return Err(Error::invalid(format!(
                    "replica {replica} has no row of the first global batch, of {rows}, to measure with; give a larger global \
                     batch, or files of as many samples"
                )));
            }
            // Again from its beginning where more are wanted than there are.
            let taken: Vec<usize> = own.iter().copied().cycle().take(wanted).collect();
            Ok(data.source().micro_batch(&first, &taken, replica, device)?.batch)
        };
        Ok(Self { rows, replica: 0, batch: Box::new(batch) })
    }

    /// Rows of a step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A batch of so many rows.
    pub(super) fn batch(&mut self, rows: usize, device: &Device) -> Result<B> {
        (self.batch)(rows, self.replica, device)
    }

    /// The same with the rows of a rank's replica.
    #[must_use]
    pub(super) fn on(self, context: &Context) -> Self {
        Self { replica: context.mesh().replica(context.world().rank()), ..self }
    }
}
