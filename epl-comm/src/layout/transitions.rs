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

/// Replicated → Partial: the first member's value / nothing.
pub(super) fn first_term_of_replicated<const D: usize>(x: Tensor<D>, group: &ProcessGroup) -> Tensor<D> {
    let term = |x: Tensor<D>| Ok(if group.rank() == 0 { x } else { nothing_to_add(x.dims(), &x) });
    collective(x, group, term, |g| Ok(Some(g)))
}

/// Split → Partial: own part among zeros / own slice.
pub(super) fn padding_of_split<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    size: usize,
    group: &ProcessGroup,
) -> Tensor<D> {
    let range = shard_range(size, group.size(), group.rank());
    let (before, after) = (range.start, size - range.end);
    let pad = move |x: Tensor<D>| {
        let zeros = |extent: usize| {
            let mut shape = x.dims();
            shape[dim] = extent;
            nothing_to_add(shape, &x)
        };
        Ok(Tensor::cat(vec![zeros(before), x.clone(), zeros(after)], dim))
    };
    collective(x, group, pad, move |g| Ok(Some(g.slice_dim(dim, range))))
}

/// Zeros that change no bit of what they are added to: 0 + -0 is 0, and -0 + -0 is -0.
fn nothing_to_add<const D: usize>(shape: [usize; D], like: &Tensor<D>) -> Tensor<D> {
    Tensor::full(shape, -0.0, (&like.device(), like.dtype()))
}

fn sizes<const D: usize>(x: &Tensor<D>, dim: usize, group: &ProcessGroup) -> Vec<usize> {
    shard_sizes(x.dims()[dim], group.size())
}
