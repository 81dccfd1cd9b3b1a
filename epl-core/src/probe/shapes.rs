//! The shapes of a step, from segments that are run one by one in a world that is only thought of.

use burn::tensor::Device;

use super::measure::{Bench, SegmentShape};
use super::planned::LazyModel;
use crate::error::Result;
use crate::model::segment::Model;
use crate::simulate::{CarryShape, SegmentCalls, StepShapes};

/// What segments of a model call and send, of each micro-batch of a step. Made by [`LazyModel::step_shapes`].
#[derive(Clone, Debug)]
pub struct MeasuredShapes {
    /// By micro-batch, then by segment.
    calls: Vec<Vec<SegmentCalls>>,
    carries: Vec<Vec<CarryShape>>,
    terms: usize,
    metrics: usize,
    lanes: usize,
}

impl StepShapes for MeasuredShapes {
    fn micro_batches(&self) -> usize {
        self.calls.len()
    }

    fn calls(&self, micro_batch: usize, segment: usize) -> &SegmentCalls {
        &self.calls[micro_batch][segment]
    }

    fn carry(&self, micro_batch: usize, segment: usize) -> &CarryShape {
        &self.carries[micro_batch][segment]
    }

    fn terms(&self) -> usize {
        self.terms
    }

    fn metrics(&self) -> usize {
        self.metrics
    }

    fn lanes(&self) -> usize {
        self.lanes
    }
}

impl<M: Model> LazyModel<M> {
    /// What its segments call and send in a step of micro-batches of so many rows each, which `batch` makes. A rank whose program
    /// is wanted runs it in [`launch_dry`](crate::launch_dry), where calls are recorded. One segment at a time gets values.
    ///
    /// Where ranks exchange as many rows as the data say, such as tokens of experts, a rank that is only thought of gets as many
    /// as it sends.
    ///
    /// # Errors
    ///
    /// Where calls are not recorded.
    pub fn step_shapes(
        &self,
        rows: &[usize],
        mut batch: impl FnMut(usize, &Device) -> M::Batch,
    ) -> Result<MeasuredShapes> {
        let Self { model, plan, place, .. } = self;
        let (context, device) = (place.context(), place.device());
        let bench = Bench { model, plan, context, device };
        let (mut calls, mut carries, mut terms) = (Vec::new(), Vec::new(), 0);
        for (number, rows) in rows.iter().enumerate() {
            let batch = batch(number, device);
            terms = model.weights(&batch).of(*rows).0.len();
            let shapes = bench.shapes(*rows, &batch)?;
            let entered = shapes.iter().skip(1).map(|next| next.gradients.clone()).chain([Vec::new()]);
            carries.push(shapes.iter().zip(entered).map(with_gradients).collect());
            calls.push(shapes.into_iter().map(|shape| shape.calls).collect());
        }
        let metrics = context.metric_lengths();
        Ok(MeasuredShapes { calls, carries, terms, metrics, lanes: context.world().lanes() })
    }
}

/// What leaves a segment, with the gradients that the next one gives it.
fn with_gradients((shape, gradients): (&SegmentShape, Vec<bool>)) -> CarryShape {
    CarryShape { gradients, ..shape.exit.clone() }
}
