//! The floating-point operations of a forward, as its layers tell them: Burn tells nobody which operations run.

use std::collections::HashSet;

use burn::module::ParamId;

/// What layers told of one forward.
#[derive(Debug, Default)]
pub(crate) struct Flops {
    /// The sum.
    pub total: f64,
    /// The parameters whose use is in it.
    pub weights: HashSet<ParamId>,
}

impl Flops {
    /// With those of a forward that goes on from there.
    pub fn and(mut self, other: Self) -> Self {
        self.total += other.total;
        self.weights.extend(other.weights);
        self
    }
}
