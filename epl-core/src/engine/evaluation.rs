//! The loss without gradients, through all stages.

use std::cell::RefCell;
use std::ops::Range;

use epl_comm::ReduceOp;

use super::batches::Given;
use super::links::Links;
use super::parameters::Parameters;
use super::report::{EvalReport, StepReport, TermSums};
use super::{Engine, MicroBatch, caught, weights};
use crate::context::NanCauses;
use crate::error::{Error, Result};
use crate::loss::{Loss, TermWeights};
use crate::precision::widen_carry;
use crate::segment::Segmented;

impl<M: Segmented> Engine<M> {
    /// The loss without gradients, over at least one micro-batch, as many on every rank. Collective.
    ///
    /// Over pipeline stages some micro-batches are read ahead, so that a stage runs one while the next stage runs the one
    /// before.
    ///
    /// # Errors
    ///
    /// When the ranks have different numbers of micro-batches, or none, ranks of one replica run other samples, or a micro-batch
    /// could not be loaded.
    pub fn evaluate(
        &self,
        micro_batches: impl IntoIterator<Item = Result<MicroBatch<M::Batch>>>,
    ) -> Result<EvalReport> {
        self.context.open_outputs();
        let model = self.model().valid();
        let mut sums = TermSums::default();
        let device = self.device.clone().without_autodiff();
        let mut links = self.links(&device);
        let (mut weights, mut given, mut count) = (TermWeights::default(), Given::default(), 0);
        let mut micro_batches = micro_batches.into_iter();
        loop {
            let window = self.next_of_all(&mut micro_batches, self.window())?;
            if window.is_empty() {
                break;
            }
            links.expect(count, &window)?;
            given.add(&window);
            let own: Vec<TermWeights> =
                window.iter().map(|micro_batch| weights::weights_of(&model, micro_batch)).collect();
            for own in &own {
                weights = weights.plus(own.clone())?;
            }
            let losses = caught(|| self.forward(&model, &window, count, &mut links))?;
            for (((loss, causes), own), micro_batch) in losses.into_iter().zip(&own).zip(&window) {
                loss.check(own, micro_batch.empty)?;
                sums.add(loss, causes, own, micro_batch.empty)?;
            }
            count += window.len();
        }
        links.finish()?;
        if count == 0 {
            return Err(Error::invalid("an evaluation without a batch; its loss would be no number"));
        }
        let weights = weights::sum_over_replicas(weights, count, &mut given, &self.context)?;
        let StepReport { loss, terms, weights, outputs, .. } = sums.reduce(0.0, &weights, &given, &self.context)?;
        Ok(EvalReport { loss, terms, weights, outputs })
    }

    /// How many micro-batches are read ahead: with several stages as many as leave about a fifth of the time idle.
    fn window(&self) -> usize {
        match self.plan.stages.count() {
            1 => 1,
            stages => 4 * stages,
        }
    }

    /// The forward of this stage's parts, without a tape, of micro-batches of which `first` is the number of the first;
    /// the last stage knows the losses, one a micro-batch.
    fn forward(
        &self,
        model: &M,
        micro_batches: &[MicroBatch<M::Batch>],
        first: usize,
        links: &mut Links<'_>,
    ) -> Result<Vec<(Loss, NanCauses)>> {
        let (mut losses, stages) = (Vec::new(), &self.plan.stages);
        let own = (0..stages.chunks()).map(|chunk| stages.parts()[stages.part(self.plan.stage(), chunk)].clone());
        let looks =
            own.flat_map(|part| micro_batches.iter().flat_map(move |_| part.clone().map(|segment| (segment, true))));
        let mut parameters = Parameters::new(self, model, looks);
        // The model that ran the last segment.
        let last = RefCell::new(None);
        let run = |number, segments: Range<usize>, mut carry: Option<M::Carry>, micro_batch: &MicroBatch<M::Batch>| {
            self.begin(micro_batch, false);
            if segments.end == self.plan.segments.len() {
                self.context.open_nan_causes();
            }
            for segment in segments {
                let _span = self.enter(segment, "evaluate", number);
                let seen = parameters.segment(segment, true)?;
                parameters.ahead()?;
                let enters = carry.map(|carry| self.narrow(carry));
                carry = Some(seen.forward_segment(segment, enters, &micro_batch.batch));
                last.replace(Some(seen).filter(|_| segment + 1 == self.plan.segments.len()));
            }
            Ok(carry.expect("a part has at least one segment"))
        };
        links.through(first, micro_batches, run, |exit, micro_batch| {
            let loss = last.take().as_deref().unwrap_or(model).loss(widen_carry(exit), &micro_batch.batch);
            losses.push((loss, self.context.take_nan_causes()));
        })?;
        Ok(losses)
    }

    /// The next micro-batches, at most so many; all ranks have as many. Collective.
    pub(super) fn next_of_all<B>(
        &self,
        micro_batches: &mut impl Iterator<Item = Result<MicroBatch<B>>>,
        most: usize,
    ) -> Result<Vec<MicroBatch<B>>> {
        let mine = micro_batches.take(most).collect::<Result<Vec<_>>>()?;
        let (world, count) = (self.context.world(), mine.len() as f64);
        // The squares tell different numbers from equal ones on every rank alike.
        let sums = world.all_reduce_values(&[count, count * count], ReduceOp::Sum)?;
        match sums[1] * world.size() as f64 == sums[0] * sums[0] {
            true => Ok(mine),
            false => Err(Error::invalid(format!(
                "this rank has {count} of the next {most} batches to evaluate, and the {} ranks together {}; give every \
                 rank the same number, with stand-ins",
                world.size(),
                sums[0]
            ))),
        }
    }
}
