//! The floating-point operations of a forward, as its layers tell them: Burn tells nobody which operations run.

use std::collections::HashSet;

use burn::module::ParamId;

use super::Context;

/// What layers told of one forward.
#[derive(Debug, Default)]
pub(crate) struct Flops {
    /// The sum.
    pub total: f64,
    /// The parameters whose use is in it.
    pub weights: HashSet<ParamId>,
}

impl Context {
    /// Tells the floating-point operations of a product, two for a multiplication and its addition, where segments are
    /// measured; `weight` is the parameter that it multiplies with, or looks something up in, which are none. A layer that is
    /// split over the tensor axis tells those of all its slices. See [`SegmentProfile`](crate::profile::SegmentProfile).
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
}
