//! Tensors without their graph, and back on the device they came from.

use core::marker::PhantomData;

use burn::backend::{Dispatch, DispatchAutodiffContext, TensorMetadata};
use burn::tensor::kind::{Autodiff, Basic};
use burn::tensor::{GradientCheckpointingStrategy, Tensor};

use super::dims::side_by_side;
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::per_member::PerMember;

/// The autodiff context of a device, if it has one: what a result must get back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed(Option<GradientCheckpointingStrategy>);

impl Placed {
    /// Takes a tensor apart.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] when the tensor is tracked: its gradient would be lost in silence.
    pub(super) fn take<const D: usize, K: Basic + Autodiff>(tensor: Tensor<D, K>) -> Result<(Buffer, Self)> {
        let tensor = tensor.into_dispatch();
        let DispatchAutodiffContext::Enabled(strategy) = tensor.autodiff else {
            return Ok((Buffer::from_dispatch(tensor), Self(None)));
        };
        if tensor.dtype().is_float() && Dispatch::is_tracked(&tensor) {
            return Err(Error::invalid(
                "a collective of a group is not differentiable, but its tensor is tracked; use the layouts (Copied, \
                 Split, Partial) or the collectives of `differentiable`, or detach() it",
            ));
        }
        Ok((Buffer::from_tensor(Tensor::<D, K>::from_dispatch(tensor)), Self(Some(strategy))))
    }

    fn put<const D: usize, K: Basic + Autodiff>(self, tensor: Tensor<D, K>) -> Tensor<D, K> {
        match self.0 {
            None => tensor,
            Some(strategy) => Tensor::from_inner(tensor).with_gradient_checkpointing_strategy(strategy),
        }
    }
}

/// How a result becomes a tensor.
#[derive(Debug)]
pub(super) struct Output<const D: usize, K> {
    shape: [usize; D],
    placed: Placed,
    /// How many rows the pieces have that it comes in, and how wide each is.
    pieces: Option<(usize, PerMember)>,
    kind: PhantomData<fn() -> K>,
}

impl<const D: usize, K: Basic + Autodiff> Output<D, K> {
    pub(super) fn new(shape: [usize; D], placed: Placed) -> Self {
        Self { shape, placed, pieces: None, kind: PhantomData }
    }

    /// The result comes in pieces, which are to be put side by side.
    pub(super) fn put_together(&mut self, rows: usize, widths: PerMember) {
        self.pieces = Some((rows, widths));
    }

    pub(super) fn finish(self, buffer: Buffer) -> Tensor<D, K> {
        let buffer = match self.pieces {
            Some((rows, widths)) => Buffer::from_tensor(side_by_side(buffer.into_flat::<K>(), rows, &widths)),
            None => buffer,
        };
        self.placed.put(buffer.into_tensor(self.shape))
    }
}
