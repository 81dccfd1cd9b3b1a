//! What leads from one layout to another, on local tensors: a collective and its transpose.

use burn::tensor::Tensor;

use crate::differentiable::{all_gather_uneven, collective, exchange, reduce_scatter_uneven};
use crate::operation::ReduceOp;
use crate::process_group::{Exchange, ProcessGroup};
use crate::rank::{shard_range, shard_sizes};

/// Replicated → Copied: nothing / all-reduce.
pub(super) fn to_copied<const D: usize>(x: Tensor<D>, group: &ProcessGroup) -> Tensor<D> {
    let back = group.clone();
    collective(x, group, Ok, move |g| back.all_reduce(g, ReduceOp::Sum).map(Some))
}

/// Partial → Replicated: all-reduce / nothing.
pub(super) fn all_reduce_of_partial<const D: usize>(x: Tensor<D>, group: &ProcessGroup) -> Tensor<D> {
    collective(x, group, |x| group.all_reduce(x, ReduceOp::Sum), |g| Ok(Some(g)))
}

/// Partial → Split: reduce-scatter / all-gather.
pub(super) fn reduce_scatter_of_partial<const D: usize>(x: Tensor<D>, dim: usize, group: &ProcessGroup) -> Tensor<D> {
    let sizes = sizes(&x, dim, group);
    reduce_scatter_uneven(x, dim, &sizes, group)
}

/// Split → Replicated: all-gather / own slice.
pub(super) fn all_gather_of_split<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    size: usize,
    group: &ProcessGroup,
) -> Tensor<D> {
    let sizes = shard_sizes(size, group.size());
    let range = shard_range(size, group.size(), group.rank());
    let gather = |x| group.all_gather_uneven(x, dim, &sizes);
    collective(x, group, gather, move |g| Ok(Some(g.slice_dim(dim, range))))
}

/// Split → Copied: all-gather / reduce-scatter.
pub(super) fn all_gather_of_copied<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    size: usize,
    group: &ProcessGroup,
) -> Tensor<D> {
    all_gather_uneven(x, dim, &shard_sizes(size, group.size()), group)
}

/// Replicated → Split: own slice / all-gather.
pub(super) fn slice_of_replicated<const D: usize>(x: Tensor<D>, dim: usize, group: &ProcessGroup) -> Tensor<D> {
    let sizes = sizes(&x, dim, group);
    let range = shard_range(x.dims()[dim], group.size(), group.rank());
    let back = group.clone();
    let slice = |x: Tensor<D>| Ok(x.slice_dim(dim, range));
    collective(x, group, slice, move |g| back.all_gather_uneven(g, dim, &sizes).map(Some))
}

/// Split(from) → Split(to): all-to-all both ways. `extents` are the whole extents of the dims.
pub(super) fn exchange_of_split<const D: usize>(
    x: Tensor<D>,
    (from, from_extent): (usize, usize),
    (to, to_extent): (usize, usize),
    group: &ProcessGroup,
) -> Tensor<D> {
    let from_sizes = shard_sizes(from_extent, group.size());
    let to_sizes = shard_sizes(to_extent, group.size());
    exchange(x, Exchange { split: (to, &to_sizes), concat: (from, &from_sizes) }, group)
}

fn sizes<const D: usize>(x: &Tensor<D>, dim: usize, group: &ProcessGroup) -> Vec<usize> {
    shard_sizes(x.dims()[dim], group.size())
}
