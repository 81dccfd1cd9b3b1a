//! The collectives, blocking.

use burn::tensor::kind::{Autodiff, Numeric};
use burn::tensor::{DType, Shape, Tensor};

use super::ProcessGroup;
use super::prepare::{Exchange, Prepared};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::{Call, Operation, ReduceOp};

/// # Collectives
///
/// All of them are [`Error::Invalid`](crate::Error::Invalid) when an argument does not fit (nothing is sent then), or
/// a tensor is tracked, or another thread owns the group; [`Error::Mismatch`](crate::Error::Mismatch) when members
/// make different calls; [`Error::Deadlock`](crate::Error::Deadlock) when ranks wait for each other in several groups;
/// [`Error::Peer`](crate::Error::Peer) when another rank failed or left. A buffer that cannot be moved between device
/// and host is an [`Error::Staging`](crate::Error::Staging).
impl ProcessGroup {
    /// Every member gets the reduction of all members' tensors, the same bits on all.
    ///
    /// Done in place where nobody else holds the tensor's memory.
    ///
    /// # Shapes
    ///
    /// `x` and the result: `[...]`, the same on every member.
    pub fn all_reduce<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        op: ReduceOp,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_all_reduce(x, op)?)
    }

    /// Every member gets all members' tensors, concatenated along `dim` in the order of the members.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., n, ...]`, the same on every member
    /// - result: `[..., size * n, ...]`
    pub fn all_gather<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_even_gather(x, dim)?)
    }

    /// [`all_gather`](Self::all_gather) of different extents; `sizes[m]` is member m's.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., sizes[rank], ...]`
    /// - result: `[..., sizes[0] + sizes[1] + ..., ...]`
    pub fn all_gather_uneven<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_all_gather(x, dim, sizes)?)
    }

    /// Every member gets its part, along `dim`, of the reduction of all members' tensors.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., size * n, ...]`, the same on every member
    /// - result: `[..., n, ...]`
    pub fn reduce_scatter<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        op: ReduceOp,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_even_scatter(x, dim, op)?)
    }

    /// [`reduce_scatter`](Self::reduce_scatter) into different extents; `sizes[m]` is member m's.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., sizes[0] + sizes[1] + ..., ...]`, the same on every member
    /// - result: `[..., sizes[rank], ...]`
    pub fn reduce_scatter_uneven<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        op: ReduceOp,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_reduce_scatter(x, dim, sizes, op)?)
    }

    /// Every member divides its tensor along `split_dim`, sends one part to every member, and concatenates what it
    /// gets along `concat_dim` in the order of the members.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., size * s, ..., c, ...]`, the same on every member
    /// - result: `[..., s, ..., size * c, ...]`; `x`'s shape when the dims are the same
    pub fn all_to_all<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        split_dim: usize,
        concat_dim: usize,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_all_to_all(x, split_dim, concat_dim)?)
    }

    /// Sends `send[m]` rows of dim 0 to each member m, in order, and receives `receive[m]` rows from each.
    ///
    /// What a member sends to another must be what the other expects: exchange the counts first
    /// ([`all_to_all_counts`](Self::all_to_all_counts)).
    ///
    /// # Shapes
    ///
    /// - `x`: `[send[0] + send[1] + ..., ...]`
    /// - result: `[receive[0] + receive[1] + ..., ...]`
    pub fn all_to_all_uneven<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_all_to_all_rows(x, send, receive)?)
    }

    /// Every member gets member `root`'s tensor.
    ///
    /// # Shapes
    ///
    /// `x` and the result: `[...]`, the same on every member; only the root's values matter.
    pub fn broadcast<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        root: usize,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_broadcast(x, root)?)
    }

    /// Waits until every member has come here.
    pub fn barrier(&self) -> Result<()> {
        if self.size() > 1 {
            self.communicator.run(Call::new(Operation::Barrier, DType::F32, Shape::new([0])), Buffer::empty())?;
        }
        Ok(())
    }

    /// [`all_to_all`](Self::all_to_all) with a size for every part.
    pub(crate) fn exchange<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dims: Exchange<'_>,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_exchange(x, dims)?)
    }

    fn run<const D: usize, K: Numeric + Autodiff>(&self, prepared: Prepared<D, K>) -> Result<Tensor<D, K>> {
        match prepared {
            Prepared::Ready(x) => Ok(x),
            Prepared::Call { call, buffer, output } => Ok(output.finish(self.communicator.run(call, buffer)?)),
        }
    }
}
