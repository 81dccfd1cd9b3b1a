//! From features to what is contrasted.

use burn::module::Module;
use burn::tensor::{Tensor, activation};
use epl_core::Place;
use epl_modules::{ReplicatedLinear, ReplicatedLinearConfig, SyncBatchNorm, SyncBatchNormConfig};

/// Products without biases, each with a batch norm over the rows of all replicas and, but for the last, a ReLU; the last norm has
/// neither scale nor shift.
#[derive(Module, Debug)]
pub struct MocoHead {
    /// The products.
    pub linears: Vec<ReplicatedLinear>,
    /// The norms behind them.
    pub norms: Vec<SyncBatchNorm>,
}

impl MocoHead {
    /// From the first of these widths over those between to the last.
    pub(super) fn new(widths: &[usize], place: &Place) -> Self {
        let (linears, norms, last) = (place.child("linears"), place.child("norms"), widths.len() - 2);
        let linear = |(index, widths): (usize, &[usize])| {
            ReplicatedLinearConfig::new(widths[0], widths[1]).with_bias(false).init(&linears.child(&index.to_string()))
        };
        let norm = |(index, width): (usize, &usize)| {
            SyncBatchNormConfig::new(*width).with_affine(index < last).init(&norms.child(&index.to_string()))
        };
        Self {
            linears: widths.windows(2).enumerate().map(linear).collect(),
            norms: widths[1..].iter().enumerate().map(norm).collect(),
        }
    }

    /// What is contrasted. In training it is a collective of the replicas.
    ///
    /// # Shapes
    ///
    /// - features: `[rows, first width]`
    /// - output: `[rows, last width]`
    pub fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        let layers = self.linears.iter().zip(&self.norms).enumerate();
        layers.fold(features, |x, (index, (linear, norm))| {
            let x = norm.forward(linear.forward(x));
            if index + 1 < self.linears.len() { activation::relu(x) } else { x }
        })
    }
}
