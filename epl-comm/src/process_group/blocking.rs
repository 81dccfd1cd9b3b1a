//! The collectives, blocking.

use burn::tensor::kind::{Autodiff, Numeric};
use burn::tensor::{DType, Shape, Tensor};

use super::ProcessGroup;
use super::communicator::Communicator;
use super::prepare::{Exchange, Prepared};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::{Call, Operation, ReduceOp};

/// # Collectives
///
/// All of them are [`Error::Invalid`](crate::Error::Invalid) when an argument does not fit (nothing is sent then), or
/// a tensor is tracked, or another thread owns the group; [`Error::Mismatch`](crate::Error::Mismatch) when members
/// make different calls; [`Error::Deadlock`](crate::Error::Deadlock) when ranks wait for each other in several groups;
/// [`Error::Timeout`](crate::Error::Timeout) when a rank does not come within the launcher's time limit;
/// [`Error::Order`](crate::Error::Order) when the order of calls is compared and another one;
/// [`Error::Peer`](crate::Error::Peer) when another rank failed or left. A buffer that cannot be moved between device
/// and host is an [`Error::Staging`](crate::Error::Staging).
///
/// In the drawings, a letter is one member's tensor, and a row of the second column what that member gets. What is
/// said of a gradient holds where every member adds to one loss; [`differentiable`](crate::differentiable) has the
/// collectives that way.
impl ProcessGroup {
    /// Every member gets the reduction of all members' tensors, the same bits on all.
    ///
    /// ```text
    /// member 0   A          A+B+C
    /// member 1   B    ──▶   A+B+C
    /// member 2   C          A+B+C
    /// ```
    ///
    /// Done in place where nobody else holds the tensor's memory. The gradient of a sum is the sum of all members'
    /// gradients: another all_reduce.
    ///
    /// # Shapes
    ///
    /// `x` and the result: `[...]`, the same on every member.
    pub fn all_reduce<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        op: ReduceOp,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_whole(x, Operation::AllReduce(op))?)
    }

    /// Member `root` gets the reduction of all members' tensors; the others get `None`.
    ///
    /// ```text
    /// member 0   A          A+B+C
    /// member 1   B    ──▶
    /// member 2   C
    /// ```
    ///
    /// The gradient of a sum is a broadcast.
    ///
    /// # Shapes
    ///
    /// `x` and the result: `[...]`, the same on every member.
    pub fn reduce<const D: usize, K: Numeric + Autodiff>(
        &self,
        x: Tensor<D, K>,
        op: ReduceOp,
        root: usize,
    ) -> Result<Option<Tensor<D, K>>> {
        self.run(self.prepare_whole(x, Operation::Reduce { op, root })?).map(self.only(root))
    }

    /// Every member gets all members' tensors, concatenated along `dim` in the order of the members.
    ///
    /// ```text
    /// member 0   A          A B C
    /// member 1   B    ──▶   A B C
    /// member 2   C          A B C
    /// ```
    ///
    /// The gradient is a reduce_scatter.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., n, ...]`, the same on every member
    /// - result: `[..., size * n, ...]`
    pub fn all_gather<const D: usize, K: Autodiff>(&self, x: Tensor<D, K>, dim: usize) -> Result<Tensor<D, K>> {
        self.run(self.prepare_even_gather(x, dim, Operation::AllGather)?)
    }

    /// [`all_gather`](Self::all_gather) of different extents; `sizes[m]` is member m's.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., sizes[rank], ...]`
    /// - result: `[..., sizes[0] + sizes[1] + ..., ...]`
    pub fn all_gather_uneven<const D: usize, K: Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_gather(x, dim, sizes, Operation::AllGather)?)
    }

    /// Member `root` gets all members' tensors, concatenated along `dim` in the order of the members; the others get
    /// `None`.
    ///
    /// ```text
    /// member 0   A          A B C
    /// member 1   B    ──▶
    /// member 2   C
    /// ```
    ///
    /// The gradient is a scatter.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., n, ...]`, the same on every member
    /// - result: `[..., size * n, ...]`
    pub fn gather<const D: usize, K: Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        root: usize,
    ) -> Result<Option<Tensor<D, K>>> {
        self.run(self.prepare_even_gather(x, dim, Operation::Gather { root })?).map(self.only(root))
    }

    /// [`gather`](Self::gather) of different extents; `sizes[m]` is member m's.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., sizes[rank], ...]`
    /// - result: `[..., sizes[0] + sizes[1] + ..., ...]`
    pub fn gather_uneven<const D: usize, K: Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        root: usize,
    ) -> Result<Option<Tensor<D, K>>> {
        self.run(self.prepare_gather(x, dim, sizes, Operation::Gather { root })?).map(self.only(root))
    }

    /// Every member gets its part, along `dim`, of the reduction of all members' tensors.
    ///
    /// ```text
    /// member 0   A0 A1 A2          A0+B0+C0
    /// member 1   B0 B1 B2    ──▶   A1+B1+C1
    /// member 2   C0 C1 C2          A2+B2+C2
    /// ```
    ///
    /// The gradient of a sum is an all_gather.
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
        self.run(self.prepare_even_scatter(x, dim, Operation::ReduceScatter(op))?)
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
        self.run(self.prepare_scatter(x, dim, sizes, Operation::ReduceScatter(op))?)
    }

    /// Every member gets its part, along `dim`, of member `root`'s tensor.
    ///
    /// ```text
    /// member 0   A0 A1 A2          A0
    /// member 1               ──▶   A1
    /// member 2                     A2
    /// ```
    ///
    /// The gradient is a gather.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., size * n, ...]`, the same on every member; only the root's values matter
    /// - result: `[..., n, ...]`
    pub fn scatter<const D: usize, K: Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        root: usize,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_even_scatter(x, dim, Operation::Scatter { root })?)
    }

    /// [`scatter`](Self::scatter) into different extents; `sizes[m]` is member m's.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., sizes[0] + sizes[1] + ..., ...]`, the same on every member; only the root's values matter
    /// - result: `[..., sizes[rank], ...]`
    pub fn scatter_uneven<const D: usize, K: Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        root: usize,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_scatter(x, dim, sizes, Operation::Scatter { root })?)
    }

    /// Every member divides its tensor along `split_dim`, sends one part to every member, and concatenates what it
    /// gets along `concat_dim` in the order of the members.
    ///
    /// ```text
    /// member 0   A0 A1 A2          A0 B0 C0
    /// member 1   B0 B1 B2    ──▶   A1 B1 C1
    /// member 2   C0 C1 C2          A2 B2 C2
    /// ```
    ///
    /// The gradient is an all_to_all with the dims exchanged.
    ///
    /// # Shapes
    ///
    /// - `x`: `[..., size * s, ..., c, ...]`, the same on every member
    /// - result: `[..., s, ..., size * c, ...]`; `x`'s shape when the dims are the same
    pub fn all_to_all<const D: usize, K: Autodiff>(
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
    /// ([`all_to_all_counts`](Self::all_to_all_counts)). The gradient goes back the same way.
    ///
    /// # Shapes
    ///
    /// - `x`: `[send[0] + send[1] + ..., ...]`
    /// - result: `[receive[0] + receive[1] + ..., ...]`
    pub fn all_to_all_uneven<const D: usize, K: Autodiff>(
        &self,
        x: Tensor<D, K>,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_all_to_all_rows(x, send, receive)?)
    }

    /// Every member gets member `root`'s tensor.
    ///
    /// ```text
    /// member 0   A          A
    /// member 1        ──▶   A
    /// member 2              A
    /// ```
    ///
    /// The gradient is a reduce.
    ///
    /// # Shapes
    ///
    /// `x` and the result: `[...]`, the same on every member; only the root's values matter.
    pub fn broadcast<const D: usize, K: Autodiff>(&self, x: Tensor<D, K>, root: usize) -> Result<Tensor<D, K>> {
        self.run(self.prepare_whole(x, Operation::Broadcast { root })?)
    }

    /// Waits until every member has come here.
    pub fn barrier(&self) -> Result<()> {
        if self.size() > 1 {
            self.communicator.run(Box::new(barrier()), Buffer::empty())?;
        }
        Ok(())
    }

    /// [`all_to_all`](Self::all_to_all) with a size for every part.
    pub(crate) fn exchange<const D: usize, K: Autodiff>(
        &self,
        x: Tensor<D, K>,
        dims: Exchange<'_>,
    ) -> Result<Tensor<D, K>> {
        self.run(self.prepare_exchange(x, dims)?)
    }

    fn run<const D: usize, K: Autodiff>(&self, prepared: Prepared<D, K>) -> Result<Tensor<D, K>> {
        run(&self.communicator, prepared)
    }

    /// What one member gets.
    pub(super) fn only<T>(&self, root: usize) -> impl FnOnce(T) -> Option<T> + Send + 'static {
        let is_root = self.rank() == root;
        move |result| is_root.then_some(result)
    }
}

/// # Links
///
/// Between two members; the others know nothing of it. Errors as for the collectives, and
/// [`Error::Invalid`](crate::Error::Invalid) when the other end is the caller.
///
/// Each way from one member to another is a link of its own: its calls come in order, but nothing is said of the order
/// between links, or between a link and the group. Other than with collectives, so, two members may start a send to
/// each other and then their receives, or the other way round.
impl ProcessGroup {
    /// Gives a tensor to member `to`, and waits until it has it; over CUDA devices, until it is on its way.
    ///
    /// ```text
    /// member 0   A
    /// member 1        ──▶   A
    /// ```
    ///
    /// The gradient comes back by a receive.
    ///
    /// # Shapes
    ///
    /// `x`: `[...]`, as the receiver expects
    pub fn send<const D: usize, K: Autodiff>(&self, x: Tensor<D, K>, to: usize) -> Result<()> {
        let prepared = self.prepare_link(x, Operation::Send, to)?;
        run(&*self.communicator.link(self.rank(), to)?, prepared).map(drop)
    }

    /// Gets the tensor that member `from` sends. Of `x`, only the shape, the element type and the device matter.
    ///
    /// # Shapes
    ///
    /// `x` and the result: `[...]`, as the sender has it
    pub fn receive<const D: usize, K: Autodiff>(&self, x: Tensor<D, K>, from: usize) -> Result<Tensor<D, K>> {
        let prepared = self.prepare_link(x, Operation::Receive, from)?;
        run(&*self.communicator.link(from, self.rank())?, prepared)
    }
}

pub(super) fn barrier() -> Call {
    Call::new(Operation::Barrier, DType::F32, Shape::new([0]))
}

fn run<const D: usize, K: Autodiff>(communicator: &Communicator, prepared: Prepared<D, K>) -> Result<Tensor<D, K>> {
    let Prepared { call, buffer, output } = prepared;
    let buffer = match call {
        None => buffer,
        Some(call) => communicator.run(call, buffer)?,
    };
    Ok(output.finish(buffer))
}
