//! What layers tell of a forward beside their result, where somebody listens.

use burn::module::ParamId;

use super::{Context, Flops, NanCauses};

impl Context {
    /// Tells the floating-point operations of a product, two for a multiplication and its addition, for the report
    /// of a step; `weight` is the parameter that it multiplies with, or looks something up in, which are none. A layer that is
    /// split over the tensor axis tells those of all its slices. See [`SegmentProfile`](crate::probe::SegmentProfile).
    pub fn count_flops(&self, weight: Option<ParamId>, flops: f64) {
        if let Some(counted) = &mut self.state().flops {
            counted.total += flops;
            counted.weights.extend(weight);
        }
    }

    /// Runs a forward whose layers are heard.
    pub(crate) fn with_flops<T>(&self, forward: impl FnOnce() -> T) -> (T, Flops) {
        self.state().flops = Some(Flops::default());
        let value = forward();
        (value, self.state().flops.take().unwrap_or_default())
    }

    /// Says where to look if the loss of the current micro-batch is NaN, which the layer makes it where its input is
    /// wrong. The engine reads the losses at the end of the step, or of some micro-batches of an evaluation, and looks then: what
    /// is found is the error of either, before anything is updated and before mixed precision would skip the step. So a check of values on a device costs no wait for it, as long as nothing is wrong. Where the loss is nobody's
    /// but the caller's, as in a forward of one's own, nothing is kept.
    pub fn explain_nan(&self, look: impl FnOnce() -> Option<String> + Send + 'static) {
        let mut state = self.state();
        let replay = state.replay;
        if let Some(causes) = state.nan_causes.as_mut().filter(|_| !replay) {
            causes.0.push(Box::new(look));
        }
    }

    /// Begins to take what layers say of the current micro-batch, whose loss somebody reads.
    pub(crate) fn open_nan_causes(&self) {
        self.state().nan_causes = Some(NanCauses::default());
    }

    /// Takes what the layers of the current micro-batch said.
    pub(crate) fn take_nan_causes(&self) -> NanCauses {
        self.state().nan_causes.take().unwrap_or_default()
    }
}
