//! The loss without gradients, through all stages.

use epl_comm::ReduceOp;

use super::links::Links;
use super::report::{EvalReport, StepReport, TermSums};
use super::{Engine, MicroBatch, caught, weights};
use crate::error::{Error, Result};
use crate::loss::{Loss, TermWeights};
use crate::segment::Segmented;

impl<M: Segmented> Engine<M> {
    /// The loss without gradients, over at least one micro-batch, as many on every rank. Collective.
    ///
    /// Micro-batches go through the stages of a pipeline one after the other.
    ///
    /// # Errors
    ///
    /// When the ranks have different numbers of micro-batches, or none, or one of them could not be loaded.
    pub fn evaluate(
        &self,
        micro_batches: impl IntoIterator<Item = Result<MicroBatch<M::Batch>>>,
    ) -> Result<EvalReport> {
        self.context.open_outputs();
        let model = self.model().valid();
        let mut sums = TermSums::default();
        let device = self.device.clone().without_autodiff();
        let mut links = self.links(&device);
        let (mut weights, mut count) = (TermWeights::default(), 0);
        let mut micro_batches = micro_batches.into_iter();
        while let Some(micro_batch) = self.next_of_all(micro_batches.next().transpose()?)? {
            links.expect(count, core::slice::from_ref(&micro_batch))?;
            let own = weights::weights_of(&model, &micro_batch);
            weights = weights.plus(own.clone())?;
            let loss = caught(|| self.forward(&model, &micro_batch, count, &mut links))?;
            if let Some(loss) = loss {
                loss.check(&own, micro_batch.empty)?;
                sums.add(loss, &own, micro_batch.empty)?;
            }
            count += 1;
        }
        links.finish()?;
        if count == 0 {
            return Err(Error::invalid("an evaluation without a batch; its loss would be no number"));
        }
        let weights = weights::sum_over_replicas(weights, count, &self.context)?;
        let StepReport { loss, terms, weights, outputs, .. } = sums.reduce(0.0, &weights, &self.context)?;
        Ok(EvalReport { loss, terms, weights, outputs })
    }

    /// The forward of this stage's parts, without a tape; the last stage knows the loss.
    fn forward(
        &self,
        model: &M,
        micro_batch: &MicroBatch<M::Batch>,
        number: usize,
        links: &mut Links<'_>,
    ) -> Result<Option<Loss>> {
        let stages = &self.plan.stages;
        for part in (0..stages.chunks()).map(|chunk| stages.part(self.plan.stage(), chunk)) {
            let mut carry = links.receive_carry(number, part)?;
            self.begin(micro_batch, false);
            for segment in stages.parts()[part].clone() {
                let _span = self.enter(segment, "evaluate", number);
                carry = Some(model.forward_segment(segment, carry, &micro_batch.batch));
            }
            let exit = carry.expect("a part has at least one segment");
            if part + 1 == stages.parts().len() {
                return Ok(Some(model.loss(exit, &micro_batch.batch)));
            }
            links.send_carry(number, part + 1, exit)?;
        }
        Ok(None)
    }

    /// Agrees with all ranks whether there is another micro-batch. Collective.
    pub(super) fn next_of_all<B>(&self, mine: Option<MicroBatch<B>>) -> Result<Option<MicroBatch<B>>> {
        let world = self.context.world();
        let ranks = world.all_reduce_values(&[f64::from(u8::from(mine.is_some()))], ReduceOp::Sum)?[0] as usize;
        match ranks {
            0 => Ok(None),
            ranks if ranks == world.size() => Ok(mine),
            ranks => Err(Error::invalid(format!(
                "{ranks} of {} ranks have another batch to evaluate; give every rank the same number, with stand-ins",
                world.size()
            ))),
        }
    }
}
