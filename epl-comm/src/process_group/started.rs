//! The collectives, started: they run on the group's helper thread, in the order in which they were started.

use burn::tensor::Tensor;
use burn::tensor::kind::{Autodiff, Numeric};

use super::ProcessGroup;
use super::prepare::Prepared;
use crate::error::Result;
use crate::operation::ReduceOp;
use crate::pending::Pending;

/// # Started collectives
///
/// Each is its blocking namesake, begun; [`Pending::wait`] gives the result. Arguments are checked at once, so what
/// is [`Error::Invalid`](crate::Error::Invalid) there is so here; other errors come out at `wait`, and end the world
/// whether anybody waits or not. A blocking collective runs after all started ones.
impl ProcessGroup {
    /// Starts an [`all_reduce`](Self::all_reduce).
    pub fn start_all_reduce<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        op: ReduceOp,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_all_reduce(x, op)?)
    }

    /// Starts an [`all_gather`](Self::all_gather).
    pub fn start_all_gather<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_even_gather(x, dim)?)
    }

    /// Starts an [`all_gather_uneven`](Self::all_gather_uneven).
    pub fn start_all_gather_uneven<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_all_gather(x, dim, sizes)?)
    }

    /// Starts a [`reduce_scatter`](Self::reduce_scatter).
    pub fn start_reduce_scatter<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        op: ReduceOp,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_even_scatter(x, dim, op)?)
    }

    /// Starts a [`reduce_scatter_uneven`](Self::reduce_scatter_uneven).
    pub fn start_reduce_scatter_uneven<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        op: ReduceOp,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_reduce_scatter(x, dim, sizes, op)?)
    }

    /// Starts an [`all_to_all`](Self::all_to_all).
    pub fn start_all_to_all<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        split_dim: usize,
        concat_dim: usize,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_all_to_all(x, split_dim, concat_dim)?)
    }

    /// Starts an [`all_to_all_uneven`](Self::all_to_all_uneven).
    pub fn start_all_to_all_uneven<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_all_to_all_rows(x, send, receive)?)
    }

    /// Starts a [`broadcast`](Self::broadcast).
    pub fn start_broadcast<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        x: Tensor<D, K>,
        root: usize,
    ) -> Result<Pending<Tensor<D, K>>> {
        self.start(self.prepare_broadcast(x, root)?)
    }

    fn start<const D: usize, K: Numeric + Autodiff + 'static>(
        &self,
        prepared: Prepared<D, K>,
    ) -> Result<Pending<Tensor<D, K>>> {
        match prepared {
            Prepared::Ready(x) => Ok(Pending::ready(x)),
            Prepared::Call { call, buffer, output } => {
                self.communicator.start(call, buffer, move |buffer| output.finish(buffer))
            }
        }
    }
}
