//! What of a step does not follow from the plan: what segments call, what they send on, how many numbers a report has.

use burn::tensor::DType;

use super::call::Called;

/// The shapes of one step. Numbers of segments, parts and units are those of the plan.
pub trait StepShapes {
    /// The micro-batches of the step.
    fn micro_batches(&self) -> usize;

    /// The collectives inside a segment.
    fn calls(&self, micro_batch: usize, segment: usize) -> &SegmentCalls;

    /// What leaves a segment.
    fn carry(&self, micro_batch: usize, segment: usize) -> &CarryShape;

    /// The terms of the loss.
    fn terms(&self) -> usize;

    /// The numbers of all metrics that layers declare.
    fn metrics(&self) -> usize;

    /// How many communicators a pool may have: [`epl_comm::ProcessGroup::lanes`].
    fn lanes(&self) -> usize;

    /// How many rows of a bucket that may travel as rows this rank sends; none where it travels whole.
    fn rows(&self, _bucket: usize) -> Option<usize> {
        None
    }
}

/// The collectives of a segment for one micro-batch, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentCalls {
    /// Of its forward.
    pub forward: Vec<Called>,
    /// Of its backward.
    pub backward: Vec<Called>,
}

/// What leaves a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarryShape {
    /// How many numbers of parts may vary.
    pub counts: usize,
    /// Its tensors.
    pub tensors: Vec<TensorShape>,
    /// Which of them have a gradient.
    pub gradients: Vec<bool>,
}

/// A tensor that travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Its element type.
    pub dtype: DType,
    /// Its dims.
    pub dims: Vec<usize>,
}

impl TensorShape {
    /// Its elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}
