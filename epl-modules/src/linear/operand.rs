//! What a layer that is split over the tensor axis takes in.

use burn::tensor::Tensor;
use epl_comm::{Copied, ProcessGroup, copied};

use crate::invalid::check_group;

/// The input of a layer that is split by columns, by heads or by classes: the same values on all its ranks.
///
/// A plain tensor becomes [`Copied`] inside the layer, at the price of one all-reduce in backward. Several layers
/// that share an input share that all-reduce when they are given one `Copied`.
#[derive(Clone, Debug)]
pub enum Operand<const D: usize> {
    /// A replicated tensor.
    Replicated(Tensor<D>),
    /// A tensor whose gradient is still partial on every rank.
    Copied(Copied<D>),
}

impl<const D: usize> From<Tensor<D>> for Operand<D> {
    fn from(tensor: Tensor<D>) -> Self {
        Self::Replicated(tensor)
    }
}

impl<const D: usize> From<Copied<D>> for Operand<D> {
    fn from(tensor: Copied<D>) -> Self {
        Self::Copied(tensor)
    }
}

impl<const D: usize> Operand<D> {
    /// The tensor as the ranks of `group` consume it.
    ///
    /// # Errors
    ///
    /// Unwinds with an error when it is copied over another group.
    pub fn copied(self, group: &ProcessGroup) -> Copied<D> {
        match self {
            Self::Replicated(tensor) => copied(tensor, group),
            Self::Copied(tensor) => {
                check_group("copied", tensor.group(), group);
                tensor
            }
        }
    }
}
