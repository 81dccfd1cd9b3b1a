//! Arguments checked and turned into calls, the same way for blocking and started collectives.

use burn::tensor::kind::{Autodiff, Basic};
use burn::tensor::{Shape, Tensor};

use super::ProcessGroup;
use super::placed::{Output, Placed};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::operation::{Call, Operation, ReduceOp};

/// A collective about to be run.
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
    pub(super) fn prepare_all_reduce<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        op: ReduceOp,
    ) -> Result<Prepared<D, K>> {
        self.prepare_whole(x, Operation::AllReduce(op))
    }

    pub(super) fn prepare_broadcast<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        root: usize,
    ) -> Result<Prepared<D, K>> {
        if root >= self.size() {
            return Err(self.invalid(format!("broadcast from member {root}, but the group has {}", self.size())));
        }
        self.prepare_whole(x, Operation::Broadcast { root })
    }

    /// A collective whose result has the shape of its input.
    fn prepare_whole<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        operation: Operation,
    ) -> Result<Prepared<D, K>> {
        let (shape, dtype) = (x.dims(), x.dtype());
        let (inner, placed) = Placed::take(x)?;
        let output = Output::new(shape, placed);
        let buffer = Buffer::from_tensor(inner);
        if self.size() == 1 {
            return Ok(Prepared::Ready(output.finish(buffer)));
        }
        Ok(Prepared::Call { call: Call::new(operation, dtype, Shape::new(shape)), buffer, output })
    }

    pub(super) fn prepare_all_gather<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
    ) -> Result<Prepared<D, K>> {
        let (shape, dtype) = (x.dims(), x.dtype());
        self.check_sizes("all_gather", &shape, dim, sizes)?;
        if shape[dim] != sizes[self.rank()] {
            return Err(self.invalid(format!(
                "all_gather along dim {dim} with sizes {sizes:?}: member {} holds {} instead of {}",
                self.rank(),
                shape[dim],
                sizes[self.rank()]
            )));
        }
        let (inner, placed) = Placed::take(x)?;
        let mut gathered = shape;
        gathered[dim] = sizes.iter().sum();
        let output = Output::new(gathered, placed);
        let buffer = Buffer::from_tensor(inner);
        if self.size() == 1 {
            return Ok(Prepared::Ready(output.finish(buffer)));
        }
        let columns: usize = shape[dim + 1..].iter().product();
        let call = Call {
            dim: Some(dim),
            rows: shape[..dim].iter().product(),
            receive: sizes.iter().map(|size| size * columns).collect(),
            ..Call::new(Operation::AllGather, dtype, Shape::new(shape))
        };
        Ok(Prepared::Call { call, buffer, output })
    }

    pub(super) fn prepare_reduce_scatter<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        dim: usize,
        sizes: &[usize],
        op: ReduceOp,
    ) -> Result<Prepared<D, K>> {
        let (shape, dtype) = (x.dims(), x.dtype());
        self.check_sizes("reduce_scatter", &shape, dim, sizes)?;
        self.check_sum("reduce_scatter", shape[dim], sizes)?;
        let (inner, placed) = Placed::take(x)?;
        let mut part = shape;
        part[dim] = sizes[self.rank()];
        let output = Output::new(part, placed);
        let buffer = Buffer::from_tensor(inner);
        if self.size() == 1 {
            return Ok(Prepared::Ready(output.finish(buffer)));
        }
        let columns: usize = shape[dim + 1..].iter().product();
        let call = Call {
            dim: Some(dim),
            rows: shape[..dim].iter().product(),
            send: sizes.iter().map(|size| size * columns).collect(),
            ..Call::new(Operation::ReduceScatter(op), dtype, Shape::new(shape))
        };
        Ok(Prepared::Call { call, buffer, output })
    }

    /// Rows of dim 0.
    pub(super) fn prepare_all_to_all_rows<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        send: &[usize],
        receive: &[usize],
    ) -> Result<Prepared<D, K>> {
        let (shape, dtype) = (x.dims(), x.dtype());
        self.check_sizes("all_to_all", &shape, 0, send)?;
        self.check_sizes("all_to_all", &shape, 0, receive)?;
        self.check_sum("all_to_all", shape[0], send)?;
        let (inner, placed) = Placed::take(x)?;
        let mut received = shape;
        received[0] = receive.iter().sum();
        let output = Output::new(received, placed);
        let buffer = Buffer::from_tensor(inner);
        if self.size() == 1 {
            self.check_sum("all_to_all", shape[0], receive)?;
            return Ok(Prepared::Ready(output.finish(buffer)));
        }
        let columns: usize = shape[1..].iter().product();
        let call = Call {
            send: send.iter().map(|rows| rows * columns).collect(),
            receive: receive.iter().map(|rows| rows * columns).collect(),
            ..Call::new(Operation::AllToAll, dtype, Shape::new(shape))
        };
        Ok(Prepared::Call { call, buffer, output })
    }

    /// From parts of one dim to parts of another.
    pub(super) fn prepare_exchange<const D: usize, K: Basic + Autodiff>(
        &self,
        x: Tensor<D, K>,
        Exchange { split: (split_dim, split), concat: (concat_dim, concat) }: Exchange<'_>,
    ) -> Result<Prepared<D, K>> {
        let (shape, dtype, me) = (x.dims(), x.dtype(), self.rank());
        self.check_sizes("all_to_all", &shape, split_dim, split)?;
        self.check_sizes("all_to_all", &shape, concat_dim, concat)?;
        self.check_sum("all_to_all", shape[split_dim], split)?;
        let (inner, placed) = Placed::take(x)?;
        let mut exchanged = shape;
        exchanged[split_dim] = split[me];
        exchanged[concat_dim] = if split_dim == concat_dim { split[me] * self.size() } else { concat.iter().sum() };
        let output = Output::new(exchanged, placed);
        if self.size() == 1 {
            return Ok(Prepared::Ready(output.finish(Buffer::from_tensor(inner))));
        }
        let piece = |from: usize, to: usize, dims: &mut dyn Iterator<Item = usize>| -> usize {
            dims.map(|dim| match dim {
                _ if dim == split_dim => split[to],
                _ if dim == concat_dim => concat[from],
                _ => shape[dim],
            })
            .product()
        };
        let call = Call {
            dim: None,
            rows: piece(me, me, &mut (0..concat_dim)),
            send: (0..self.size()).map(|to| piece(me, to, &mut (0..D))).collect(),
            receive: (0..self.size()).map(|from| piece(from, me, &mut (concat_dim..D))).collect(),
            ..Call::new(Operation::AllToAll, dtype, Shape::new(shape))
        };
        Ok(Prepared::Call { call, buffer: Buffer::from_tensor(pieces(inner, split_dim, split)), output })
    }

    pub(super) fn invalid(&self, message: String) -> Error {
        Error::Invalid { message: format!("group `{}`: {message}", self.name()) }
    }

    fn check_sizes(&self, what: &str, shape: &[usize], dim: usize, sizes: &[usize]) -> Result<()> {
        if dim >= shape.len() {
            return Err(self.invalid(format!("{what} along dim {dim} of a tensor of {} dims", shape.len())));
        }
        if sizes.len() != self.size() {
            return Err(self.invalid(format!(
                "{what} with {} sizes in a group of {}; give one a member",
                sizes.len(),
                self.size()
            )));
        }
        Ok(())
    }

    fn check_sum(&self, what: &str, extent: usize, sizes: &[usize]) -> Result<()> {
        let sum: usize = sizes.iter().sum();
        if sum != extent {
            return Err(
                self.invalid(format!("{what}: sizes {sizes:?} make {sum}, but the tensor's extent is {extent}"))
            );
        }
        Ok(())
    }

    /// The part of each member when `extent` is divided evenly.
    pub(super) fn even_sizes(&self, what: &str, extent: usize) -> Result<Vec<usize>> {
        if !extent.is_multiple_of(self.size()) {
            return Err(self.invalid(format!(
                "{what}: an extent of {extent} does not divide evenly over {} members; give the sizes ({what}_uneven)",
                self.size()
            )));
        }
        Ok(vec![extent / self.size(); self.size()])
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
