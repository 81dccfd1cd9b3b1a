//! Collectives with their transposes, on local tensors: what the layouts are made of.
//!
//! All of them unwind when the collective fails, and do nothing in a group of one. A tensor must be tracked on all
//! members or on none: backward is a collective too.

use burn::tensor::Tensor;

use super::custom_vjp::custom_vjp;
use crate::error::{Result, unwind};
use crate::operation::ReduceOp;
use crate::process_group::{Exchange, ProcessGroup};
use crate::rank::{shard_range, shard_sizes};

/// Sends `send[m]` rows of dim 0 to each member m and receives `receive[m]` from each; backward sends the gradients
/// back the same way. See [`ProcessGroup::all_to_all_uneven`].
///
/// # Shapes
///
/// - `x`: `[send[0] + send[1] + ..., ...]`
/// - result: `[receive[0] + receive[1] + ..., ...]`
///
/// # Panics
///
/// Unwinds with the error of the collective.
pub fn all_to_all_rows<const D: usize>(
    x: Tensor<D>,
    send: &[usize],
    receive: &[usize],
    group: &ProcessGroup,
) -> Tensor<D> {
    if group.size() == 1 && send == receive && send == [x.dims()[0]] {
        return x;
    }
    let (back, send, receive) = (group.clone(), send.to_vec(), receive.to_vec());
    let forward = (send.clone(), receive.clone());
    collective(
        x,
        |x| group.all_to_all_uneven(x, &forward.0, &forward.1),
        move |g| back.all_to_all_uneven(g, &receive, &send),
    )
}

/// Replicated → Copied: nothing / all-reduce.
pub(crate) fn to_copied<const D: usize>(x: Tensor<D>, group: &ProcessGroup) -> Tensor<D> {
    let back = group.clone();
    alone(group, x, |x| collective(x, Ok, move |g| back.all_reduce(g, ReduceOp::Sum)))
}

/// Partial → Replicated: all-reduce / nothing.
pub(crate) fn all_reduce_of_partial<const D: usize>(x: Tensor<D>, group: &ProcessGroup) -> Tensor<D> {
    alone(group, x, |x| collective(x, |x| group.all_reduce(x, ReduceOp::Sum), Ok))
}

/// Partial → Split: reduce-scatter / all-gather.
pub(crate) fn reduce_scatter_of_partial<const D: usize>(x: Tensor<D>, dim: usize, group: &ProcessGroup) -> Tensor<D> {
    let sizes = sizes(&x, dim, group);
    let back = (group.clone(), sizes.clone());
    alone(group, x, |x| {
        collective(
            x,
            |x| group.reduce_scatter_uneven(x, dim, &sizes, ReduceOp::Sum),
            move |g| back.0.all_gather_uneven(g, dim, &back.1),
        )
    })
}

/// Split → Replicated: all-gather / own slice.
pub(crate) fn all_gather_of_split<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    size: usize,
    group: &ProcessGroup,
) -> Tensor<D> {
    let sizes = shard_sizes(size, group.size());
    let range = shard_range(size, group.size(), group.rank());
    alone(group, x, |x| {
        collective(x, |x| group.all_gather_uneven(x, dim, &sizes), move |g| Ok(g.slice_dim(dim, range)))
    })
}

/// Split → Copied: all-gather / reduce-scatter.
pub(crate) fn all_gather_of_copied<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    size: usize,
    group: &ProcessGroup,
) -> Tensor<D> {
    let sizes = shard_sizes(size, group.size());
    let back = (group.clone(), sizes.clone());
    alone(group, x, |x| {
        collective(
            x,
            |x| group.all_gather_uneven(x, dim, &sizes),
            move |g| back.0.reduce_scatter_uneven(g, dim, &back.1, ReduceOp::Sum),
        )
    })
}

/// Replicated → Split: own slice / all-gather.
pub(crate) fn slice_of_replicated<const D: usize>(x: Tensor<D>, dim: usize, group: &ProcessGroup) -> Tensor<D> {
    let sizes = sizes(&x, dim, group);
    let range = shard_range(x.dims()[dim], group.size(), group.rank());
    let back = group.clone();
    alone(group, x, |x| collective(x, |x| Ok(x.slice_dim(dim, range)), move |g| back.all_gather_uneven(g, dim, &sizes)))
}

/// Split(from) → Split(to): all-to-all both ways. `extents` are the whole extents of the dims.
pub(crate) fn exchange_of_split<const D: usize>(
    x: Tensor<D>,
    (from, from_extent): (usize, usize),
    (to, to_extent): (usize, usize),
    group: &ProcessGroup,
) -> Tensor<D> {
    let from_sizes = shard_sizes(from_extent, group.size());
    let to_sizes = shard_sizes(to_extent, group.size());
    let back = (group.clone(), from_sizes.clone(), to_sizes.clone());
    alone(group, x, |x| {
        collective(
            x,
            |x| group.exchange(x, Exchange { split: (to, &to_sizes), concat: (from, &from_sizes) }),
            move |g| back.0.exchange(g, Exchange { split: (from, &back.1), concat: (to, &back.2) }),
        )
    })
}

/// `f` unless the group has one member only.
fn alone<const D: usize>(group: &ProcessGroup, x: Tensor<D>, f: impl FnOnce(Tensor<D>) -> Tensor<D>) -> Tensor<D> {
    if group.size() == 1 { x } else { f(x) }
}

fn sizes<const D: usize>(x: &Tensor<D>, dim: usize, group: &ProcessGroup) -> Vec<usize> {
    shard_sizes(x.dims()[dim], group.size())
}

/// A collective forward and one backward.
fn collective<const D: usize>(
    x: Tensor<D>,
    forward: impl FnOnce(Tensor<D>) -> Result<Tensor<D>>,
    backward: impl FnOnce(Tensor<D>) -> Result<Tensor<D>> + Send + 'static,
) -> Tensor<D> {
    custom_vjp(
        (x,),
        |(x,)| (forward(x).unwrap_or_else(|error| unwind(error)), ()),
        move |(), gradient| (Some(backward(gradient).unwrap_or_else(|error| unwind(error))),),
    )
}
