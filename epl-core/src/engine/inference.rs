//! Forwards without gradients over many batches.

use super::{Engine, MicroBatch, caught};
use crate::error::{Error, Result};
use crate::segment::Segmented;

impl<M: Segmented> Engine<M> {
    /// Hands the model without autodiff, dropout off, and one micro-batch after the other to `f`, as many on every
    /// rank. Collective, and `f` may be.
    ///
    /// Of several pipeline stages each gets the whole model: see [`inference`](Self::inference).
    ///
    /// The batches need not be the model's own: `f` decides what it does with them. A stand-in is handed out as well:
    /// what `f` runs with it takes part in the collectives, and must count for nothing.
    ///
    /// # Errors
    ///
    /// When the ranks have different numbers of micro-batches, or none, one of them could not be loaded, or `f` fails.
    pub fn each_batch<B>(
        &self,
        micro_batches: impl IntoIterator<Item = Result<MicroBatch<B>>>,
        mut f: impl FnMut(&M, &MicroBatch<B>) -> Result<()>,
    ) -> Result<()> {
        let model = self.inference()?;
        let mut micro_batches = micro_batches.into_iter();
        let mut count = 0;
        while let Some(micro_batch) = self.next_of_all(&mut micro_batches, 1)?.pop() {
            count += 1;
            caught(|| {
                self.begin(&micro_batch, false);
                f(&model, &micro_batch)
            })?;
        }
        if count == 0 {
            return Err(Error::invalid("an evaluation without a batch; its measures would be no numbers"));
        }
        Ok(())
    }
}
