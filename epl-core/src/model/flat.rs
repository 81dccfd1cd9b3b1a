//! Numbers that a device still has.

use burn::tensor::kind::{Autodiff, Numeric};
use burn::tensor::{Device, Int, Tensor};
use epl_comm::Buffer;

/// Numbers of a device that are still to be read, in a row and without their graph.
#[derive(Clone, Debug)]
pub(crate) enum Flat {
    Float(Tensor<1>),
    Int(Tensor<1, Int>),
}

impl Flat {
    pub fn of<const D: usize, K: Numeric + Autodiff>(tensor: Tensor<D, K>) -> Self {
        let (is_float, elements) = (tensor.dtype().is_float(), tensor.shape().num_elements());
        let buffer = Buffer::from_tensor(tensor);
        match is_float {
            true => Self::Float(buffer.into_tensor([elements])),
            false => Self::Int(buffer.into_tensor([elements])),
        }
    }

    pub fn device(&self) -> Device {
        match self {
            Self::Float(tensor) => tensor.device(),
            Self::Int(tensor) => tensor.device(),
        }
    }
}
