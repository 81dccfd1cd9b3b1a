//! Collectives that are part of a graph: each with the collective that is its gradient.
//!
//! Every member has a loss of its own, and what is meant by the loss is their sum. So where a collective spreads a
//! value, its gradient gathers what all members have made of it, and the other way round:
//!
//! | forward | backward |
//! |---|---|
//! | [`all_reduce`] (sum) | all_reduce |
//! | [`all_gather`] | reduce_scatter |
//! | [`reduce_scatter`] (sum) | all_gather |
//! | [`all_to_all`] | all_to_all, the dims exchanged |
//! | [`all_to_all_uneven`] | all_to_all_uneven, sent and received rows exchanged |
//! | [`broadcast`] | reduce |
//! | [`scatter`] | gather |
//!
//! Where instead one loss is computed in the same way by all members, as in tensor parallelism, the layouts
//! ([`Copied`](crate::Copied), [`Split`](crate::Split), [`Partial`](crate::Partial)) are the right ones: they count
//! such a loss once. `reduce`, `gather`, `send` and `receive` are not here: a member that gets no result has no
//! backward pass that could take part in the gradient's collective.
//!
//! All of them unwind with the error of a collective that fails ([`crate::catch`]), and do nothing in a group of one.
//! Backward is a collective, too: the tensor must be tracked on all members or on none, and all members must run it,
//! in the same order.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use epl_comm::{differentiable, testing::run_ranks};
//!
//! let gradients = run_ranks(2, |group| {
//!     let x = Tensor::<1>::ones([2], &Device::flex().autodiff()).require_grad();
//!     // A loss of its own on each: once the sum of both, and twice.
//!     let factor = (group.rank() + 1) as f64;
//!     let loss = (differentiable::all_reduce(x.clone(), &group) * factor).sum();
//!     x.grad(&loss.backward()).unwrap().into_data().iter::<f32>().collect::<Vec<_>>()
//! });
//! assert_eq!(gradients, [[3.0, 3.0], [3.0, 3.0]]);
//! ```

use burn::tensor::{DType, Device, Tensor};

use crate::autodiff::custom_vjp;
use crate::error::{Result, unwind};
use crate::operation::ReduceOp;
use crate::process_group::{Exchange, ProcessGroup};

/// The sum of all members' tensors, on every member; see [`ProcessGroup::all_reduce`].
///
/// # Shapes
///
/// `x` and the result: `[...]`, the same on every member
///
/// # Panics
///
/// Unwinds with the error of the collective; so do all functions of this module.
pub fn all_reduce<const D: usize>(x: Tensor<D>, group: &ProcessGroup) -> Tensor<D> {
    let back = group.clone();
    collective(x, group, |x| group.all_reduce(x, ReduceOp::Sum), move |g| back.all_reduce(g, ReduceOp::Sum).map(Some))
}

/// All members' tensors along `dim`, on every member; see [`ProcessGroup::all_gather`].
///
/// # Shapes
///
/// - `x`: `[..., n, ...]`, the same on every member
/// - result: `[..., size * n, ...]`
pub fn all_gather<const D: usize>(x: Tensor<D>, dim: usize, group: &ProcessGroup) -> Tensor<D> {
    let back = group.clone();
    let backward = move |g| back.reduce_scatter(g, dim, ReduceOp::Sum).map(Some);
    collective(x, group, |x| group.all_gather(x, dim), backward)
}

/// [`all_gather`] of different extents; `sizes[m]` is member m's. See [`ProcessGroup::all_gather_uneven`].
///
/// # Shapes
///
/// - `x`: `[..., sizes[rank], ...]`
/// - result: `[..., sizes[0] + sizes[1] + ..., ...]`
pub fn all_gather_uneven<const D: usize>(x: Tensor<D>, dim: usize, sizes: &[usize], group: &ProcessGroup) -> Tensor<D> {
    let back = (group.clone(), sizes.to_vec());
    let backward = move |g| back.0.reduce_scatter_uneven(g, dim, &back.1, ReduceOp::Sum).map(Some);
    collective(x, group, |x| group.all_gather_uneven(x, dim, sizes), backward)
}

/// Each member's part along `dim` of the sum of all members' tensors; see [`ProcessGroup::reduce_scatter`].
///
/// # Shapes
///
/// - `x`: `[..., size * n, ...]`, the same on every member
/// - result: `[..., n, ...]`
pub fn reduce_scatter<const D: usize>(x: Tensor<D>, dim: usize, group: &ProcessGroup) -> Tensor<D> {
    let back = group.clone();
    let backward = move |g| back.all_gather(g, dim).map(Some);
    collective(x, group, |x| group.reduce_scatter(x, dim, ReduceOp::Sum), backward)
}

/// [`reduce_scatter`] into different extents; `sizes[m]` is member m's. See [`ProcessGroup::reduce_scatter_uneven`].
///
/// # Shapes
///
/// - `x`: `[..., sizes[0] + sizes[1] + ..., ...]`, the same on every member
/// - result: `[..., sizes[rank], ...]`
pub fn reduce_scatter_uneven<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    sizes: &[usize],
    group: &ProcessGroup,
) -> Tensor<D> {
    let back = (group.clone(), sizes.to_vec());
    let backward = move |g| back.0.all_gather_uneven(g, dim, &back.1).map(Some);
    collective(x, group, |x| group.reduce_scatter_uneven(x, dim, sizes, ReduceOp::Sum), backward)
}

/// From the parts of one dim to the parts of another; see [`ProcessGroup::all_to_all`].
///
/// # Shapes
///
/// - `x`: `[..., size * s, ..., c, ...]`, the same on every member
/// - result: `[..., s, ..., size * c, ...]`; `x`'s shape when the dims are the same
pub fn all_to_all<const D: usize>(
    x: Tensor<D>,
    split_dim: usize,
    concat_dim: usize,
    group: &ProcessGroup,
) -> Tensor<D> {
    let back = group.clone();
    let backward = move |g| back.all_to_all(g, concat_dim, split_dim).map(Some);
    collective(x, group, |x| group.all_to_all(x, split_dim, concat_dim), backward)
}

/// `send[m]` rows of dim 0 to each member m, `receive[m]` rows from each; see [`ProcessGroup::all_to_all_uneven`].
///
/// # Shapes
///
/// - `x`: `[send[0] + send[1] + ..., ...]`
/// - result: `[receive[0] + receive[1] + ..., ...]`
pub fn all_to_all_uneven<const D: usize>(
    x: Tensor<D>,
    send: &[usize],
    receive: &[usize],
    group: &ProcessGroup,
) -> Tensor<D> {
    let (back, sent, received) = (group.clone(), send.to_vec(), receive.to_vec());
    let backward = move |g| back.all_to_all_uneven(g, &received, &sent).map(Some);
    collective(x, group, |x| group.all_to_all_uneven(x, send, receive), backward)
}

/// Member `root`'s tensor on every member; see [`ProcessGroup::broadcast`]. The other members' gradients are zeros.
///
/// # Shapes
///
/// `x` and the result: `[...]`, the same on every member
pub fn broadcast<const D: usize>(x: Tensor<D>, root: usize, group: &ProcessGroup) -> Tensor<D> {
    let (back, shape) = (group.clone(), x.dims());
    let backward = move |g: Tensor<D>| {
        let options = (g.device(), g.dtype());
        Ok(back.reduce(g, ReduceOp::Sum, root)?.or_else(|| Some(zeros(shape, options))))
    };
    collective(x, group, |x| group.broadcast(x, root), backward)
}

/// Each member's part along `dim` of member `root`'s tensor; see [`ProcessGroup::scatter`]. The other members'
/// gradients are zeros.
///
/// # Shapes
///
/// - `x`: `[..., size * n, ...]`, the same on every member
/// - result: `[..., n, ...]`
pub fn scatter<const D: usize>(x: Tensor<D>, dim: usize, root: usize, group: &ProcessGroup) -> Tensor<D> {
    let (back, shape) = (group.clone(), x.dims());
    let backward = move |g: Tensor<D>| {
        let options = (g.device(), g.dtype());
        Ok(back.gather(g, dim, root)?.or_else(|| Some(zeros(shape, options))))
    };
    collective(x, group, |x| group.scatter(x, dim, root), backward)
}

/// [`scatter`] into different extents; `sizes[m]` is member m's. See [`ProcessGroup::scatter_uneven`].
///
/// # Shapes
///
/// - `x`: `[..., sizes[0] + sizes[1] + ..., ...]`, the same on every member
/// - result: `[..., sizes[rank], ...]`
pub fn scatter_uneven<const D: usize>(
    x: Tensor<D>,
    dim: usize,
    sizes: &[usize],
    root: usize,
    group: &ProcessGroup,
) -> Tensor<D> {
    let (back, shape, parts) = (group.clone(), x.dims(), sizes.to_vec());
    let backward = move |g: Tensor<D>| {
        let options = (g.device(), g.dtype());
        Ok(back.gather_uneven(g, dim, &parts, root)?.or_else(|| Some(zeros(shape, options))))
    };
    collective(x, group, |x| group.scatter_uneven(x, dim, sizes, root), backward)
}

fn zeros<const D: usize>(shape: [usize; D], (device, dtype): (Device, DType)) -> Tensor<D> {
    Tensor::zeros(shape, (&device, dtype))
}

/// From parts of one dim to parts of another, whatever their sizes.
pub(crate) fn exchange<const D: usize>(x: Tensor<D>, dims: Exchange<'_>, group: &ProcessGroup) -> Tensor<D> {
    let Exchange { split: (split_dim, split), concat: (concat_dim, concat) } = dims;
    let (back, split, concat) = (group.clone(), split.to_vec(), concat.to_vec());
    collective(
        x,
        group,
        |x| group.exchange(x, dims),
        move |g| back.exchange(g, Exchange { split: (concat_dim, &concat), concat: (split_dim, &split) }).map(Some),
    )
}

/// One collective forward and one backward; nothing in a group of one.
pub(crate) fn collective<const D: usize>(
    x: Tensor<D>,
    group: &ProcessGroup,
    forward: impl FnOnce(Tensor<D>) -> Result<Tensor<D>>,
    backward: impl FnOnce(Tensor<D>) -> Result<Option<Tensor<D>>> + Send + 'static,
) -> Tensor<D> {
    let forward = |x| forward(x).unwrap_or_else(|error| unwind(error));
    if group.size() == 1 {
        // What does not fit is refused all the same.
        forward(x.clone().inner());
        return x;
    }
    custom_vjp(
        (x,),
        |(x,)| (forward(x), ()),
        move |(), gradient| (backward(gradient).unwrap_or_else(|error| unwind(error)),),
    )
}
