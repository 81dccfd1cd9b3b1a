//! The collectives, started: they run on the group's helper thread, in the order in which they were started.

use burn::tensor::Tensor;
use burn::tensor::kind::{Autodiff, Numeric};

use super::ProcessGroup;
use super::blocking::barrier;
use super::communicator::Communicator;
use super::prepare::Prepared;
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::{Operation, ReduceOp};
use crate::pending::Pending;

/// # Started collectives
///
/// Each is its blocking namesake, begun; [`Pending::wait`] gives the result. Arguments are checked at once, so what
/// is [`Error::Invalid`](crate::Error::Invalid) there is so here; other errors come out at `wait`, and end the world
/// whether anybody waits or not; a panic on the helper thread is an [`Error::Panic`](crate::Error::Panic) there. A blocking collective runs after all started ones.
impl ProcessGroup {
    /// Starts an [`all_reduce`](Self::all_reduce).
    pub fn start_all_reduce<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        op: ReduceOp,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_whole(x, Operation::AllReduce(op))?)
    }

    /// Starts a [`reduce`](Self::reduce).
    pub fn start_reduce<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        op: ReduceOp,
        root: usize,
    ) -> Result<Pending<Option<Tensor<D, K>>>> {
        let pending = self.start(self.prepare_whole(x, Operation::Reduce { op, root })?)?;
        Ok(pending.map(self.only(root)))
    }

    /// Starts an [`all_gather`](Self::all_gather).
    pub fn start_all_gather<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_even_gather(x, dim, Operation::AllGather)?)
    }

    /// Starts an [`all_gather_uneven`](Self::all_gather_uneven).
    pub fn start_all_gather_uneven<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_gather(x, dim, sizes, Operation::AllGather)?)
    }

    /// Starts a [`gather`](Self::gather).
    pub fn start_gather<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        root: usize,
    ) -> Result<Pending<Option<Tensor<D, K>>>> {
        let pending = self.start(self.prepare_even_gather(x, dim, Operation::Gather { root })?)?;
        Ok(pending.map(self.only(root)))
    }

    /// Starts a [`gather_uneven`](Self::gather_uneven).
    pub fn start_gather_uneven<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        root: usize,
    ) -> Result<Pending<Option<Tensor<D, K>>>> {
        let pending = self.start(self.prepare_gather(x, dim, sizes, Operation::Gather { root })?)?;
        Ok(pending.map(self.only(root)))
    }

    /// Starts a [`reduce_scatter`](Self::reduce_scatter).
    pub fn start_reduce_scatter<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        op: ReduceOp,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_even_scatter(x, dim, Operation::ReduceScatter(op))?)
    }

    /// Starts a [`reduce_scatter_uneven`](Self::reduce_scatter_uneven).
    pub fn start_reduce_scatter_uneven<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        op: ReduceOp,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_scatter(x, dim, sizes, Operation::ReduceScatter(op))?)
    }

    /// Starts a [`scatter`](Self::scatter).
    pub fn start_scatter<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        root: usize,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_even_scatter(x, dim, Operation::Scatter { root })?)
    }

    /// Starts a [`scatter_uneven`](Self::scatter_uneven).
    pub fn start_scatter_uneven<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        root: usize,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_scatter(x, dim, sizes, Operation::Scatter { root })?)
    }

    /// Starts an [`all_to_all`](Self::all_to_all).
    pub fn start_all_to_all<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        split_dim: usize,
        concat_dim: usize,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_all_to_all(x, split_dim, concat_dim)?)
    }

    /// Starts an [`all_to_all_uneven`](Self::all_to_all_uneven).
    pub fn start_all_to_all_uneven<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_all_to_all_rows(x, send, receive)?)
    }

    /// Starts a [`broadcast`](Self::broadcast).
    pub fn start_broadcast<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        root: usize,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_whole(x, Operation::Broadcast { root })?)
    }

    /// Starts a [`barrier`](Self::barrier).
    pub fn start_barrier(&self) -> Result<Pending<()>> {
        match self.size() {
            1 => Ok(Pending::from(())),
            _ => self.communicator.start(Box::new(barrier()), Buffer::empty(), drop),
        }
    }

    /// Starts a [`send`](Self::send). Each link has a helper thread of its own.
    pub fn start_send<const D: usize, K: Autodiff + 'static>(&self, x: Tensor<D, K>, to: usize) -> Result<Pending<()>> {
        let prepared = self.prepare_link(x, Operation::Send, to)?;
        Ok(start(&*self.communicator.link(self.rank(), to)?, prepared)?.map(drop))
    }

    /// Starts a [`receive`](Self::receive). Each link has a helper thread of its own.
    pub fn start_receive<const D: usize, K: Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        from: usize,
    ) -> Result<Pending<Tensor<D, K>>> {
        let prepared = self.prepare_link(x, Operation::Receive, from)?;
        start(&*self.communicator.link(from, self.rank())?, prepared)
    }

    fn start<const D: usize, K: Autodiff + 'static>(&self, prepared: Prepared<D, K>) -> Result<Pending<Tensor<D, K>>> {
        start(&self.communicator, prepared)
    }
}

fn start<const D: usize, K: Autodiff + 'static>(
    communicator: &Communicator,
    prepared: Prepared<D, K>,
) -> Result<Pending<Tensor<D, K>>> {
    let Prepared { call, buffer, output } = prepared;
    match call {
        None => Ok(Pending::from(output.finish(buffer))),
        Some(call) => communicator.start(call, buffer, move |buffer| output.finish(buffer)),
    }
}
