//! Forwards without a graph, through all stages.
//!
//! ```text
//! stage 0   batch ──▶ [ segment 0 ] ──▶ carry ──▶ [ segment 1 ] ──▶ carry ┐ sent
//! stage 1                                      ┌──────────────────────────┘
//!                                              └▶ [ segment 2 ] ──▶ carry ──▶ end
//! ```
//!
//! Parameters are there, or are gathered, segment by segment as in training: no rank has more of the model at once.

use std::cell::RefCell;
use std::ops::Range;

use burn::tensor::Device;

use super::links::StageLinks;
use super::micro_batch::MicroBatch;
use super::parameters::{Parameters, Seen};
use super::rank::Engine;
use crate::error::Result;
use crate::model::precision::widen_carry;
use crate::model::segment::Model;
use crate::plan::batch_views::BatchViews;
use crate::simulate::pieces::Look;

/// A model without autodiff, whose segments are run forward.
pub(super) struct Forward<'a, M: Model> {
    engine: &'a Engine<M>,
    model: M,
    device: Device,
    /// Whether segments compute in 16 bits where training does.
    is_half: bool,
    /// What a segment's run is called in a trace.
    what: &'static str,
}

impl<'a, M: Model> Forward<'a, M> {
    /// Of the engine's model as it is.
    pub fn new(engine: &'a Engine<M>, what: &'static str) -> Self {
        let device = engine.device.clone().without_autodiff();
        Self { engine, model: engine.model().valid(), device, is_half: false, what }
    }

    /// As training computes under mixed precision.
    pub fn in_half(mut self) -> Self {
        self.is_half = true;
        self
    }

    /// A batch as its segments see it.
    pub fn batch<'b>(&'b self, batch: &'b M::Batch) -> BatchViews<'b, M::Batch> {
        BatchViews::new(&self.model, &self.engine.plan, self.engine.plan.half.filter(|_| self.is_half), batch)
    }

    /// The model without autodiff. What lies elsewhere is empty in it.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The ways to the other stages.
    pub fn links(&self) -> StageLinks<'_> {
        self.engine.links(&self.device)
    }

    /// Takes micro-batches, of which `first` is the number of the first, through those of `segments` that this rank's
    /// stage runs, each by `segment`. What leaves the model is for `end`, with the model that ran the last segment.
    /// Collective.
    pub fn run(
        &self,
        links: &mut StageLinks<'_>,
        (first, micro_batches): (usize, &[MicroBatch<M::Batch>]),
        segments: Range<usize>,
        mut segment: impl FnMut(&M, usize, Option<M::Carry>, &M::Batch) -> M::Carry,
        mut end: impl FnMut(&M, M::Carry, &MicroBatch<M::Batch>) -> Result<()>,
    ) -> Result<()> {
        let (engine, model) = (self.engine, &self.model);
        let (stages, count) = (&engine.plan.stages, engine.plan.segments.len());
        let parts = stages.parts_within(engine.plan.stage(), &segments);
        let looks = |(_, part): (usize, Range<usize>)| {
            micro_batches.iter().flat_map(move |_| part.clone().map(|index| -> Look { (index, true) }))
        };
        let mut parameters = Parameters::new(engine, model, parts.into_iter().flat_map(looks)).with_half(self.is_half);
        // The model that ran the last segment.
        let last: RefCell<Option<Seen<'_, M>>> = RefCell::new(None);
        let run = |number, part: Range<usize>, mut carry: Option<M::Carry>, micro_batch: &MicroBatch<M::Batch>| {
            engine.begin(micro_batch, false);
            let batch = self.batch(&micro_batch.batch);
            for index in part {
                let _span = engine.enter(index, self.what, number);
                let seen = parameters.segment(index, true)?;
                parameters.ahead()?;
                let enters = carry.map(|carry| match self.is_half {
                    true => engine.plan.enter(index, carry),
                    false => carry,
                });
                carry = Some(segment(&seen, index, enters, batch.of(index)));
                last.replace(Some(seen).filter(|_| index + 1 == count));
            }
            Ok(carry.expect("a part has at least one segment"))
        };
        links.through((first, micro_batches), segments, run, |exit, micro_batch| {
            let ran = last.take();
            let ran = ran.as_deref().unwrap_or(model);
            let behind = engine.plan.behind_last(ran);
            end(behind.as_ref().unwrap_or(ran), widen_carry(exit), micro_batch)
        })
    }
}
