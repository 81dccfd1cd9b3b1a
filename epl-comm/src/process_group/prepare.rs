//! Arguments turned into calls, the same way for blocking and started collectives.

use core::ops::Range;

use burn::tensor::kind::{Autodiff, Basic};
use burn::tensor::{Shape, Tensor};

use super::ProcessGroup;
use super::placed::{Output, Placed};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::operation::{Call, Operation, PerMember};

/// A collective about to be run. It is taken apart at once: a box would cost more than the room.
#[expect(clippy::large_enum_variant)]
pub(super) enum Prepared<const D: usize, K: Basic> {
    /// Nothing needs to be sent.
    Ready(Tensor<D, K>),
    Call {
        call: Call,
        buffer: Buffer,
        output: Output<D, K>,
    },
}

/// The dims on both sides of an all-to-all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange<'a> {
    /// The dim that is divided, and the part of each member.
    pub split: (usize, &'a [usize]),
    /// The dim that is put together, and the extent that each member holds before.
    pub concat: (usize, &'a [usize]),
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
        let sizes = PerMember::from_elem(x.dims()[dim], self.size());
        self.prepare_along(x, dim, &sizes, operation)
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
        self.prepare_along(x, dim, sizes, operation)
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
        self.prepare_scatter(x, dim, &sizes, operation)
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
        self.prepare_along(x, dim, sizes, operation)
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
            send: send.iter().map(|rows| rows * columns).collect(),
            receive: receive.iter().map(|rows| rows * columns).collect(),
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
        let concat = PerMember::from_elem(shape[concat_dim], self.size());
        self.prepare_exchange(x, Exchange { split: (split_dim, &split), concat: (concat_dim, &concat) })
    }

    /// From parts of one dim to parts of another.
    pub(super) fn prepare_exchange<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        Exchange { split: (split_dim, split), concat: (concat_dim, concat) }: Exchange<'_>,
    ) -> Result<Prepared<D, K>> {
        let (shape, me) = (x.dims(), self.rank());
        self.check_sizes("all_to_all", &shape, split_dim, split)?;
        self.check_sum("all_to_all", shape[split_dim], split)?;
        self.check_sizes("all_to_all", &shape, concat_dim, concat)?;
        self.check_held("all_to_all", concat_dim, shape[concat_dim], concat)?;
        self.check_whole("all_to_all", &shape, concat_dim, concat)?;
        let mut exchanged = shape;
        exchanged[split_dim] = split[me];
        exchanged[concat_dim] = if split_dim == concat_dim { split[me] * self.size() } else { concat.iter().sum() };
        let piece = |from: usize, to: usize, dims: Range<usize>| -> usize {
            dims.map(|dim| match dim {
                _ if dim == split_dim => split[to],
                _ if dim == concat_dim => concat[from],
                _ => shape[dim],
            })
            .product()
        };
        let call = Call {
            dim: Some(concat_dim),
            split_dim: Some(split_dim),
            rows: piece(me, me, 0..concat_dim),
            send: (0..self.size()).map(|to| piece(me, to, 0..D)).collect(),
            receive: (0..self.size()).map(|from| piece(from, me, concat_dim..D)).collect(),
            ..Call::new(Operation::AllToAll, x.dtype(), Shape::new(shape))
        };
        match self.prepared(x, call, exchanged)? {
            Prepared::Call { call, buffer, output } => {
                let buffer = Buffer::from_tensor(pieces(buffer.into_tensor::<D, K>(shape), split_dim, split));
                Ok(Prepared::Call { call, buffer, output })
            }
            ready => Ok(ready),
        }
    }

    /// A collective that puts `dim` together from parts of these sizes, or divides it into them.
    fn prepare_along<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        operation: Operation,
    ) -> Result<Prepared<D, K>> {
        let shape = x.dims();
        let columns: usize = shape[dim + 1..].iter().product();
        let widths: PerMember = sizes.iter().map(|size| size * columns).collect();
        let me = self.rank();
        if let Operation::Gather { root } | Operation::Scatter { root } = operation {
            self.check_member(operation.name(), root)?;
        }
        let (send, receive, extent) = match operation {
            Operation::Gather { root } if root != me => (PerMember::new(), widths, shape[dim]),
            Operation::AllGather | Operation::Gather { .. } => (PerMember::new(), widths, sizes.iter().sum()),
            _ => (widths, PerMember::new(), sizes[me]),
        };
        let rows = shape[..dim].iter().product();
        let call = Call { dim: Some(dim), rows, send, receive, ..Call::new(operation, x.dtype(), Shape::new(shape)) };
        let mut result = shape;
        result[dim] = extent;
        self.prepared(x, call, result)
    }

    /// A call with its tensor taken apart; `result` is the shape of what it gives.
    fn prepared<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        call: Call,
        result: [usize; D],
    ) -> Result<Prepared<D, K>> {
        let (inner, placed) = Placed::take(x)?;
        let (buffer, output) = (Buffer::from_tensor(inner), Output::new(result, placed));
        Ok(match self.size() {
            1 => Prepared::Ready(output.finish(buffer)),
            _ => Prepared::Call { call, buffer, output },
        })
    }
}

/// The pieces for all members, one after the other: each contiguous.
fn pieces<const D: usize, K: Basic>(x: Tensor<D, K>, dim: usize, sizes: &[usize]) -> Tensor<1, K> {
    let shape = x.dims();
    let (rows, columns): (usize, usize) = (shape[..dim].iter().product(), shape[dim + 1..].iter().product());
    let total: usize = shape.iter().product();
    if total == 0 {
        // In a reshape, 0 would stand for the old extent.
        return Tensor::zeros([0], (&x.device(), x.dtype()));
    }
    if rows == 1 {
        return x.reshape([total]);
    }
    let x = x.reshape([rows, shape[dim] * columns]);
    if sizes.iter().all(|size| *size == sizes[0]) {
        // One copy, made by the transport.
        return x.reshape([rows, sizes.len(), sizes[0] * columns]).swap_dims(0, 1).reshape([total]);
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(sizes.len());
    for width in sizes.iter().map(|size| size * columns).filter(|width| *width > 0) {
        parts.push(x.clone().narrow(1, start, width).reshape([rows * width]));
        start += width;
    }
    Tensor::cat(parts, 0)
}
