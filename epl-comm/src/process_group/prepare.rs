//! Arguments turned into calls, the same way for blocking and started collectives.

use burn::tensor::kind::{Autodiff, Basic};
use burn::tensor::{Shape, Tensor};

use super::ProcessGroup;
use super::dims::apart;
use super::placed::{Output, Placed};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::{Call, Operation};
use crate::per_member::PerMember;

/// A collective about to be run.
pub(super) struct Prepared<const D: usize, K: Basic> {
    /// None where nothing needs to be sent, in a group of one: the buffer is the result.
    pub(super) call: Option<Box<Call>>,
    pub(super) buffer: Buffer,
    pub(super) output: Output<D, K>,
}

/// The dims on both sides of an all-to-all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange<'a> {
    /// The dim that is divided, and the part of each member.
    pub split: (usize, &'a [usize]),
    /// The dim that is put together, and the extent that each member holds before.
    pub concat: (usize, &'a [usize]),
}

impl<const D: usize, K: Basic + Autodiff> Prepared<D, K> {
    /// Gives the buffer, which is a tensor of this shape, in pieces along a dim.
    fn taken_apart(self, shape: [usize; D], dim: usize, sizes: &PerMember) -> Self {
        if shape[..dim].iter().all(|extent| *extent == 1) {
            return self;
        }
        let whole = self.buffer.into_tensor::<D, K>(shape);
        Self { buffer: Buffer::from_tensor(apart(whole, dim, sizes)), ..self }
    }
}

impl ProcessGroup {
    /// A collective whose result has the shape of its input.
    pub(super) fn prepare_whole<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        operation: Operation,
    ) -> Result<Prepared<D, K>> {
        if let Operation::Reduce { root, .. } | Operation::Broadcast { root } = operation {
            self.check_member(operation.name(), root)?;
        }
        self.check_op(x.dtype(), operation)?;
        let shape = x.dims();
        let call = Call::new(operation, x.dtype(), Shape::new(shape));
        self.prepared(x, call, shape)
    }

    /// A tensor for the other end of a link, or from it.
    pub(super) fn prepare_link<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        operation: Operation,
        peer: usize,
    ) -> Result<Prepared<D, K>> {
        self.check_peer(operation.name(), peer)?;
        self.prepare_whole(x, operation)
    }

    /// The same extent on every member, put together.
    pub(super) fn prepare_even_gather<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        operation: Operation,
    ) -> Result<Prepared<D, K>> {
        self.check_dim(operation.name(), &x.dims(), dim)?;
        let sizes = PerMember::same(x.dims()[dim], self.size());
        self.prepare_along(x, dim, sizes, operation)
    }

    /// Different extents, put together.
    pub(super) fn prepare_gather<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        operation: Operation,
    ) -> Result<Prepared<D, K>> {
        self.check_sizes(operation.name(), &x.dims(), dim, sizes)?;
        self.check_held(operation.name(), dim, x.dims()[dim], sizes)?;
        self.check_whole(operation.name(), &x.dims(), dim, sizes)?;
        self.prepare_along(x, dim, sizes.into(), operation)
    }

    /// The same extent for every member, taken apart.
    pub(super) fn prepare_even_scatter<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        operation: Operation,
    ) -> Result<Prepared<D, K>> {
        let name = operation.name();
        self.check_dim(name, &x.dims(), dim)?;
        let instead = format_args!(", or give the sizes ({name}_uneven)");
        let sizes = self.even_sizes(name, dim, x.dims()[dim], instead)?;
        self.check_op(x.dtype(), operation)?;
        self.prepare_along(x, dim, sizes, operation)
    }

    /// Different extents, taken apart.
    pub(super) fn prepare_scatter<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        operation: Operation,
    ) -> Result<Prepared<D, K>> {
        self.check_sizes(operation.name(), &x.dims(), dim, sizes)?;
        self.check_sum(operation.name(), x.dims()[dim], sizes)?;
        self.check_op(x.dtype(), operation)?;
        self.prepare_along(x, dim, sizes.into(), operation)
    }

    /// Rows of dim 0.
    pub(super) fn prepare_all_to_all_rows<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Prepared<D, K>> {
        let shape = x.dims();
        self.check_sizes("all_to_all", &shape, 0, send)?;
        self.check_sizes("all_to_all", &shape, 0, receive)?;
        self.check_sum("all_to_all", shape[0], send)?;
        self.check_whole("all_to_all", &shape, 0, receive)?;
        if self.size() == 1 {
            self.check_sum("all_to_all", shape[0], receive)?;
        }
        let columns: usize = shape[1..].iter().product();
        let call = Call {
            dim: Some(0),
            split_dim: Some(0),
            send: PerMember::from(send).times(columns),
            receive: PerMember::from(receive).times(columns),
            ..Call::new(Operation::AllToAll, x.dtype(), Shape::new(shape))
        };
        let mut received = shape;
        received[0] = receive.iter().sum();
        self.prepared(x, call, received)
    }

    /// The same extents from and for every member.
    pub(super) fn prepare_all_to_all<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        split_dim: usize,
        concat_dim: usize,
    ) -> Result<Prepared<D, K>> {
        let shape = x.dims();
        self.check_dim("all_to_all", &shape, split_dim)?;
        self.check_dim("all_to_all", &shape, concat_dim)?;
        let instead = match (split_dim, concat_dim) {
            (0, 0) => format_args!(", or give the rows for each member (all_to_all_uneven)"),
            _ => format_args!(""),
        };
        let split = self.even_sizes("all_to_all", split_dim, shape[split_dim], instead)?;
        self.prepare_pieces(x, (split_dim, split), (concat_dim, PerMember::same(shape[concat_dim], self.size())))
    }

    /// From parts of one dim to parts of another.
    pub(super) fn prepare_exchange<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        Exchange { split: (split_dim, split), concat: (concat_dim, concat) }: Exchange<'_>,
    ) -> Result<Prepared<D, K>> {
        let shape = x.dims();
        self.check_sizes("all_to_all", &shape, split_dim, split)?;
        self.check_sum("all_to_all", shape[split_dim], split)?;
        self.check_sizes("all_to_all", &shape, concat_dim, concat)?;
        self.check_held("all_to_all", concat_dim, shape[concat_dim], concat)?;
        self.check_whole("all_to_all", &shape, concat_dim, concat)?;
        self.prepare_pieces(x, (split_dim, split.into()), (concat_dim, concat.into()))
    }

    /// An all-to-all whose sizes fit the tensor.
    fn prepare_pieces<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        (split_dim, split): (usize, PerMember),
        (concat_dim, concat): (usize, PerMember),
    ) -> Result<Prepared<D, K>> {
        let (shape, me) = (x.dims(), self.rank());
        let mut exchanged = shape;
        exchanged[split_dim] = split[me];
        // A piece of this member's for itself: in the dims before the one put together, and from that on.
        let (before, from) = exchanged.split_at(concat_dim);
        let (rows, width): (usize, usize) = (before.iter().product(), from[1..].iter().product());
        let others: usize = shape.iter().enumerate().filter(|(dim, _)| *dim != split_dim).map(|(_, n)| n).product();
        let concat = if split_dim == concat_dim { PerMember::same(split[me], self.size()) } else { concat };
        let call = Call {
            dim: Some(concat_dim),
            split_dim: Some(split_dim),
            rows,
            send: split.times(others),
            receive: concat.times(width),
            ..Call::new(Operation::AllToAll, x.dtype(), Shape::new(shape))
        };
        exchanged[concat_dim] = concat.total();
        let mut prepared = self.prepared(x, call, exchanged)?;
        if prepared.call.is_some() {
            prepared = prepared.taken_apart(shape, split_dim, &split);
            self.put_together(&mut prepared);
        }
        Ok(prepared)
    }

    /// A collective that puts `dim` together from parts of these sizes, or divides it into them.
    fn prepare_along<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: PerMember,
        operation: Operation,
    ) -> Result<Prepared<D, K>> {
        let shape = x.dims();
        let widths = sizes.times(shape[dim + 1..].iter().product());
        let me = self.rank();
        if let Operation::Gather { root } | Operation::Scatter { root } = operation {
            self.check_member(operation.name(), root)?;
        }
        let (send, receive, extent) = match operation {
            Operation::Gather { root } if root != me => (PerMember::default(), widths, shape[dim]),
            Operation::AllGather | Operation::Gather { .. } => (PerMember::default(), widths, sizes.total()),
            _ => (widths, PerMember::default(), sizes[me]),
        };
        let rows = shape[..dim].iter().product();
        let call = Call { dim: Some(dim), rows, send, receive, ..Call::new(operation, x.dtype(), Shape::new(shape)) };
        let mut result = shape;
        result[dim] = extent;
        let mut prepared = self.prepared(x, call, result)?;
        let is_given = match operation {
            Operation::Scatter { root } => root == me,
            _ => matches!(operation, Operation::ReduceScatter(_)),
        };
        if is_given && prepared.call.is_some() && !self.communicator.transport.moves_rows() {
            prepared = prepared.taken_apart(shape, dim, &sizes);
        }
        self.put_together(&mut prepared);
        Ok(prepared)
    }

    /// Puts together at last what the transport gives in pieces.
    fn put_together<const D: usize, K: Basic + Autodiff>(&self, prepared: &mut Prepared<D, K>) {
        let Some(call) = prepared.call.as_ref().filter(|_| !self.communicator.transport.moves_rows()) else { return };
        let is_result = !matches!(call.operation, Operation::Gather { root } if root != self.rank());
        if call.rows != 1 && !call.receive.is_empty() && is_result {
            prepared.output.put_together(call.rows, call.receive.clone());
        }
    }

    /// A call with its tensor taken apart; `result` is the shape of what it gives.
    fn prepared<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        call: Call,
        result: [usize; D],
    ) -> Result<Prepared<D, K>> {
        let (buffer, placed) = Placed::take(x)?;
        let call = (self.size() > 1).then(|| Box::new(call));
        Ok(Prepared { call, buffer, output: Output::new(result, placed) })
    }
}
