//! A micro-batch as the segments of a pass, and the loss behind them, see it.

use std::cell::OnceCell;

use super::resolved::Plan;
use crate::model::batch::BatchTensors;
use crate::model::precision::HalfPrecision;
use crate::model::segment::Model;

/// A batch as it is, and in 16 bits as soon as a segment asks for it.
pub(crate) struct BatchViews<'a, B> {
    whole: &'a B,
    /// None where no tensor is cast.
    in_half: OnceCell<Option<B>>,
    tensors: BatchTensors<B>,
    plan: &'a Plan,
    /// In which type of 16 bits the segments of the pass compute, if they do.
    half: Option<HalfPrecision>,
}

impl<'a, B> BatchViews<'a, B> {
    /// Of a pass that computes in `half`, or none.
    pub fn new<M: Model<Batch = B>>(model: &M, plan: &'a Plan, half: Option<HalfPrecision>, batch: &'a B) -> Self {
        Self { whole: batch, in_half: OnceCell::new(), tensors: model.batch_tensors(), plan, half }
    }

    /// What a segment reads.
    pub fn of(&self, segment: usize) -> &B {
        match self.half.and(self.plan.half_in(segment)) {
            Some(half) => {
                self.in_half.get_or_init(|| self.tensors.in_half(self.whole, half)).as_ref().unwrap_or(self.whole)
            }
            None => self.whole,
        }
    }

    /// What the loss reads.
    pub fn of_loss(&self) -> &B {
        match self.tensors.in_loss() {
            true => self.of(self.plan.segments.len() - 1),
            false => self.whole,
        }
    }
}
