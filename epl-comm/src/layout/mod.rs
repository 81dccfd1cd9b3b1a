//! Layouts as types: how the members' local tensors make up one tensor.
//!
//! | type | value | gradient |
//! |---|---|---|
//! | `Tensor` | the same on every member (replicated) | the same on every member |
//! | [`Copied`] | the same on every member | partial: what a split layer consumes |
//! | [`Split`] | this member's part of one dim | this member's part |
//! | [`Partial`] | a sum not yet taken | the same on every member |
//!
//! Only collectives lead from one to another, each with its transpose:
//!
//! ```text
//!                 copied: nothing / all-reduce
//!   Tensor ──────────────────────────────────────▶ Copied
//!    ▲ ▲ │                                           ▲
//!    │ │ │ sliced: own slice / all-gather            │ all_gather_copied: all-gather / reduce-scatter
//!    │ │ └─────────────────────────────▶ Split ──────┘
//!    │ │                                 │ ▲ └──▶ Split of another dim: all_to_all / all-to-all
//!    │ └─── all_gather ──────────────────┘ │
//!    │      all-gather / own slice         │ reduce_scatter: reduce-scatter / all-gather
//!    │                                     │
//!    └───────────────────────────────── Partial
//!      all_reduce: all-reduce / nothing
//! ```
//!
//! Two ways back to a sum that has not been taken need no collective: [`first_term`] (from a replicated tensor: the
//! first member's value / nothing) and [`Split::padded`] (this member's part among zeros / own slice).
//!
//! The mistake they exclude is a partial sum used as if it were whole. A failed collective unwinds with its error
//! ([`crate::catch`]). In a group of one they do nothing and leave no trace in the graph.

mod transitions;

use core::ops::Range;

use burn::tensor::Tensor;

use crate::error::{Error, unwind};
use crate::process_group::ProcessGroup;
use crate::rank::shard_range;
use transitions::{
    all_gather_of_copied, all_gather_of_split, all_reduce_of_partial, exchange_of_split, first_term_of_replicated,
    padding_of_split, reduce_scatter_of_partial, slice_of_replicated, to_copied,
};

/// The same value on every member, with a gradient that is a partial sum on each.
#[derive(Clone, Debug)]
pub struct Copied<const D: usize> {
    local: Tensor<D>,
    group: ProcessGroup,
}

/// One member's part of a tensor that is divided along one dim, by [`shard_range`].
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use epl_comm::{Partial, sliced, testing::run_ranks};
///
/// // A product of whose inner dim each member computes its part: one term of a sum.
/// let products = run_ranks(2, |group| {
///     let device = Device::flex();
///     let x = sliced(Tensor::<2>::ones([2, 5], &device), 1, &group);
///     let rows = x.range(); // 0..3 and 3..5
///     let term = x.local().matmul(Tensor::<2>::ones([5, 3], &device).slice_dim(0, rows));
///     Partial::from_local(term, &group).all_reduce().into_data().iter::<f32>().collect::<Vec<_>>()
/// });
/// assert_eq!(products, [[5.0; 6], [5.0; 6]]);
/// ```
#[derive(Clone, Debug)]
pub struct Split<const D: usize> {
    local: Tensor<D>,
    dim: usize,
    size: usize,
    group: ProcessGroup,
}

/// One member's term of a sum that has not been taken.
#[derive(Clone, Debug)]
pub struct Partial<const D: usize> {
    local: Tensor<D>,
    group: ProcessGroup,
}

/// Replicated → [`Copied`]. Forward nothing, backward an all-reduce.
///
/// # Shapes
///
/// `x` and the local tensor: `[...]`
pub fn copied<const D: usize>(x: Tensor<D>, group: &ProcessGroup) -> Copied<D> {
    Copied { local: to_copied(x, group), group: group.clone() }
}

/// Replicated → [`Split`]. Forward this member's slice, backward an all-gather.
///
/// # Shapes
///
/// - `x`: `[..., n, ...]`
/// - local tensor: `[..., shard_range(n, size, rank), ...]`
pub fn sliced<const D: usize>(x: Tensor<D>, dim: usize, group: &ProcessGroup) -> Split<D> {
    check_dim::<D>(dim);
    let size = x.dims()[dim];
    Split { local: slice_of_replicated(x, dim, group), dim, size, group: group.clone() }
}

/// Replicated → [`Partial`]. Forward the first member's value, with zeros on the others; backward nothing.
///
/// The sum is `x` to the bit.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use epl_comm::{first_term, testing::run_ranks};
///
/// let sums = run_ranks(2, |group| {
///     let bias = Tensor::<1>::full([1], 0.1, &Device::flex()); // the same on both
///     let term = first_term(bias, &group);
///     (term.clone().local().into_scalar::<f32>(), term.all_reduce().into_scalar::<f32>())
/// });
/// assert_eq!(sums, [(0.1, 0.1), (0.0, 0.1)]); // added once, however many members add up their terms
/// ```
///
/// # Shapes
///
/// `x` and the local tensor: `[...]`
pub fn first_term<const D: usize>(x: Tensor<D>, group: &ProcessGroup) -> Partial<D> {
    Partial { local: first_term_of_replicated(x, group), group: group.clone() }
}

impl<const D: usize> Copied<D> {
    /// States that `local` is the same on every member, and takes a gradient that is a partial sum on each.
    pub fn from_local(local: Tensor<D>, group: &ProcessGroup) -> Self {
        Self { local, group: group.clone() }
    }

    /// This member's tensor, to be computed with.
    pub fn local(self) -> Tensor<D> {
        self.local
    }

    /// The members.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }
}

impl<const D: usize> Split<D> {
    /// States that `local` is this member's part of a tensor whose `dim` has `size` in all.
    ///
    /// # Shapes
    ///
    /// `local`: `[..., shard_range(size, group.size(), group.rank()), ...]`
    ///
    /// # Panics
    ///
    /// Unwinds with [`Error::Invalid`] when the local extent is another.
    pub fn from_local(local: Tensor<D>, dim: usize, size: usize, group: &ProcessGroup) -> Self {
        check_dim::<D>(dim);
        let (held, expected) = (local.dims()[dim], shard_range(size, group.size(), group.rank()).len());
        if held != expected {
            unwind(Error::invalid(format!(
                "member {} of group `{}` holds {held} of {size} along dim {dim}, but its part of {} parts is \
                 {expected}; cut it by shard_range",
                group.rank(),
                group.name(),
                group.size()
            )));
        }
        Self { local, dim, size, group: group.clone() }
    }

    /// This member's part, to be computed with.
    pub fn local(self) -> Tensor<D> {
        self.local
    }

    /// The dim that is divided.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The extent of the dim over all members.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Which of it is this member's.
    pub fn range(&self) -> Range<usize> {
        shard_range(self.size, self.group.size(), self.group.rank())
    }

    /// The members.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// → replicated. Forward an all-gather, backward this member's slice.
    ///
    /// # Shapes
    ///
    /// result: `[..., size, ...]`
    pub fn all_gather(self) -> Tensor<D> {
        all_gather_of_split(self.local, self.dim, self.size, &self.group)
    }

    /// → [`Copied`]. Forward an all-gather, backward a reduce-scatter.
    ///
    /// # Shapes
    ///
    /// local tensor: `[..., size, ...]`
    pub fn all_gather_copied(self) -> Copied<D> {
        Copied { local: all_gather_of_copied(self.local, self.dim, self.size, &self.group), group: self.group }
    }

    /// → divided along another dim. All-to-all both ways; nothing when `dim` is the same.
    ///
    /// # Shapes
    ///
    /// local tensor: `[..., size, ..., shard_range(n, size, rank), ...]`, n the extent of `dim`
    pub fn all_to_all(self, dim: usize) -> Self {
        check_dim::<D>(dim);
        if dim == self.dim {
            return self;
        }
        let size = self.local.dims()[dim];
        let local = exchange_of_split(self.local, (self.dim, self.size), (dim, size), &self.group);
        Self { local, dim, size, group: self.group }
    }

    /// → [`Partial`]. Forward this member's part among zeros, backward this member's slice.
    ///
    /// The sum is the whole to the bit.
    ///
    /// # Shapes
    ///
    /// local tensor: `[..., size, ...]`
    pub fn padded(self) -> Partial<D> {
        Partial { local: padding_of_split(self.local, self.dim, self.size, &self.group), group: self.group }
    }
}

impl<const D: usize> Partial<D> {
    /// States that the tensor meant is the sum of all members' `local`s.
    pub fn from_local(local: Tensor<D>, group: &ProcessGroup) -> Self {
        Self { local, group: group.clone() }
    }

    /// This member's term.
    pub fn local(self) -> Tensor<D> {
        self.local
    }

    /// The members.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// → replicated. Forward an all-reduce, backward nothing.
    ///
    /// # Shapes
    ///
    /// result: `[...]`, that of the local tensor
    pub fn all_reduce(self) -> Tensor<D> {
        all_reduce_of_partial(self.local, &self.group)
    }

    /// → [`Split`]. Forward a reduce-scatter, backward an all-gather.
    ///
    /// # Shapes
    ///
    /// - `self`: `[..., n, ...]`
    /// - local tensor: `[..., shard_range(n, size, rank), ...]`
    pub fn reduce_scatter(self, dim: usize) -> Split<D> {
        check_dim::<D>(dim);
        let size = self.local.dims()[dim];
        Split { local: reduce_scatter_of_partial(self.local, dim, &self.group), dim, size, group: self.group }
    }
}

fn check_dim<const D: usize>(dim: usize) {
    if dim >= D {
        unwind(Error::invalid(format!(
            "there is no dim {dim} in a tensor of {D} dims; dims count from 0, so give one below {D}"
        )));
    }
}
