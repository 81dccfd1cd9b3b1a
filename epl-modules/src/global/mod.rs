//! Tensors that lie on several axes of the mesh at once.
//!
//! A [`GlobalTensor`] is one tensor of which every rank holds a part: its global shape, and for each axis of the mesh
//! whether that axis splits a dim, holds copies, or holds the terms of a sum ([`Sbp`]). Where one axis is enough and
//! the compiler is to check it, the one-axis types [`Split`] and [`Partial`] are; this one builds on them.
//!
//! ```text
//!  global shape [7, 5]                 tensor 0      tensor 1
//!  data: S(0), tensor: S(1)    data 0  [0..4, 0..3]  [0..4, 3..5]
//!                              data 1  [4..7, 0..3]  [4..7, 3..5]
//! ```
//!
//! - `layout`: what an axis does, and which part that leaves to a rank.
//! - `route`: the way from one layout to another, one axis at a time.
//! - `draw`: random values, which do not depend on the layout.
//! - `placement`: which ranks it lies on, printable.

mod draw;
mod layout;
mod placement;
mod route;

pub use layout::{Layout, Sbp};
pub use placement::Placement;

use core::ops::Range;

use burn::tensor::{Distribution, Tensor, TensorData};
use epl_comm::{Partial, Split, first_term, sliced};
use epl_core::{Axis, Context, Place};

use crate::invalid::refuse;
use crate::random::Noise;

/// This rank's part of one tensor that lies on several axes of the mesh.
///
/// Only [`to_layout`](Self::to_layout), and what is built on it, communicates. It is differentiable, with the
/// conventions of the one-axis types: one loss that all ranks compute counts once; the gradient of a split axis is
/// this rank's part, that of any other axis is the same on all its ranks. To use a broadcast axis in a computation
/// that differs between its ranks, take [`epl_comm::copied`] of the local tensor.
///
/// ```
/// use burn::tensor::Distribution;
/// use epl_core::{Axis, testing};
/// use epl_modules::{GlobalTensor, Sbp};
///
/// testing::run((2, 2, 1), |epl| {
///     let layout = [(Axis::Data, Sbp::Split(0)), (Axis::Tensor, Sbp::Split(1))];
///     let noise = GlobalTensor::random([7, 5], Distribution::Default, layout, &epl.place().child("noise"));
///     assert_eq!(noise.placement().to_string(), "data × tensor [[0, 1], [2, 3]]");
///     let columns = noise.to_layout([(Axis::Tensor, Sbp::Split(1))]); // an all-gather over the data axis
///     assert_eq!(columns.ranges()[0], 0..7);
///     assert_eq!(columns.gather().dims(), [7, 5]);
///     Ok(())
/// });
/// ```
#[derive(Clone, Debug)]
pub struct GlobalTensor<const D: usize> {
    local: Tensor<D>,
    shape: [usize; D],
    layout: Layout,
    context: Context,
}

impl<const D: usize> GlobalTensor<D> {
    /// Random values that depend on the seed, the place's path and where they stand, to the bit: not on the layout.
    /// Each rank draws its own part only. The same path gives the same values again.
    ///
    /// Values are drawn in f64 and rounded to the device's element type, so a uniform one may round to its upper bound.
    /// On a partial axis the first rank holds the values, the others zeros.
    ///
    /// # Shapes
    ///
    /// local tensor: `shape`, cut by [`Layout::ranges`]
    ///
    /// # Panics
    ///
    /// Unwinds with [`epl_comm::Error::Invalid`] when the layout does not fit the shape, names an axis twice or axes
    /// that overlap, or when there is no such distribution.
    pub fn random(
        shape: [usize; D],
        distribution: Distribution,
        layout: impl Into<Layout>,
        place: &Place,
    ) -> GlobalTensor<D> {
        let (layout, context) = (layout.into(), place.context());
        layout.check::<D>();
        let ranges = layout.ranges(shape, context);
        let noise = Noise::new(context.seed(), 0, place.path_key(), 0);
        let extents = ranges.each_ref().map(ExactSizeIterator::len);
        let local = match layout.holds_values(context) {
            true => {
                Tensor::from_data(TensorData::new(draw::draw(noise, &ranges, distribution), extents), place.device())
            }
            // Nothing that would change a bit of the sum.
            false => Tensor::full(extents, -0.0, place.device()),
        };
        Self { local, shape, layout, context: context.clone() }
    }

    /// Zeros.
    ///
    /// # Panics
    ///
    /// See [`random`](Self::random).
    pub fn zeros(shape: [usize; D], layout: impl Into<Layout>, place: &Place) -> Self {
        let (layout, context) = (layout.into(), place.context());
        layout.check::<D>();
        let extents = layout.ranges(shape, context).each_ref().map(ExactSizeIterator::len);
        Self { local: Tensor::zeros(extents, place.device()), shape, layout, context: context.clone() }
    }

    /// States that `local` is this rank's part of a tensor with this global shape and layout.
    ///
    /// # Shapes
    ///
    /// `local`: `shape`, cut by [`Layout::ranges`]
    ///
    /// # Panics
    ///
    /// As [`random`](Self::random), and when the local shape is another.
    pub fn from_local(local: Tensor<D>, shape: [usize; D], layout: impl Into<Layout>, context: &Context) -> Self {
        let layout = layout.into();
        layout.check::<D>();
        let ranges = layout.ranges(shape, context);
        let (held, expected) = (local.dims(), ranges.each_ref().map(ExactSizeIterator::len));
        if held != expected {
            refuse(format!(
                "rank {} holds {held:?} of a tensor of {shape:?}, but under the layout `{layout}` its part {ranges:?} is \
                 {expected:?}; cut it by Layout::ranges",
                context.world().rank()
            ));
        }
        Self { local, shape, layout, context: context.clone() }
    }

    /// Lays out a tensor that every rank holds whole.
    ///
    /// # Panics
    ///
    /// See [`random`](Self::random).
    pub fn from_whole(whole: Tensor<D>, layout: impl Into<Layout>, context: &Context) -> Self {
        let shape = whole.dims();
        Self::from_local(whole, shape, Layout::default(), context).to_layout(layout)
    }

    /// The same tensor in another layout. Collective over the axes that change, one step an axis where that is
    /// possible: all-gather, own slice, all-to-all, all-reduce, reduce-scatter.
    ///
    /// # Panics
    ///
    /// As [`random`](Self::random), and with the error of a collective that fails.
    pub fn to_layout(mut self, layout: impl Into<Layout>) -> Self {
        let layout = layout.into();
        layout.check::<D>();
        let (from, to) = (self.layout.essential(&self.context), layout.essential(&self.context));
        self.layout = from.clone();
        self = route::route(&from, &to).into_iter().fold(self, |tensor, (axis, sbp)| tensor.step(axis, sbp));
        Self { layout, ..self }
    }

    /// Takes the sum over every partial axis, which becomes a broadcast one. Collective.
    pub fn all_reduce(self) -> Self {
        let whole = |sbp: Sbp| if sbp == Sbp::Partial { Sbp::Broadcast } else { sbp };
        let layout: Layout = self.layout.axes().iter().map(|(axis, sbp)| (*axis, whole(*sbp))).collect();
        self.to_layout(layout)
    }

    /// The whole tensor, on every rank. Collective.
    ///
    /// # Shapes
    ///
    /// result: the global shape
    pub fn gather(self) -> Tensor<D> {
        self.to_layout(Layout::default()).local
    }

    /// This rank's part, to be computed with.
    pub fn local(self) -> Tensor<D> {
        self.local
    }

    /// The shape of the whole.
    pub fn global_shape(&self) -> [usize; D] {
        self.shape
    }

    /// What each axis does with it.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The ranks it lies on, by the axes of its layout.
    pub fn placement(&self) -> Placement {
        Placement::new(self.layout.axes().iter().map(|(axis, _)| *axis).collect(), &self.context)
    }

    /// Which part is this rank's, dim by dim.
    pub fn ranges(&self) -> [Range<usize>; D] {
        self.layout.ranges(self.shape, &self.context)
    }

    /// Changes one axis by the one-axis layouts. An axis that splits a dim is the innermost that does.
    fn step(self, axis: Axis, to: Sbp) -> Self {
        let Self { local, shape, layout, context } = self;
        let group = context.axis(axis);
        let split = |local, dim: usize| {
            let around = layout.with(axis, Sbp::Broadcast).ranges(shape, &context)[dim].len();
            Split::from_local(local, dim, around, group)
        };
        let local = match (layout.along(axis), to) {
            (Sbp::Broadcast, Sbp::Split(dim)) => sliced(local, dim, group).local(),
            (Sbp::Broadcast, Sbp::Partial) => first_term(local, group).local(),
            (Sbp::Partial, Sbp::Broadcast) => Partial::from_local(local, group).all_reduce(),
            (Sbp::Partial, Sbp::Split(dim)) => Partial::from_local(local, group).reduce_scatter(dim).local(),
            (Sbp::Split(dim), Sbp::Broadcast) => split(local, dim).all_gather(),
            (Sbp::Split(dim), Sbp::Partial) => split(local, dim).padded().local(),
            (Sbp::Split(dim), Sbp::Split(other)) => split(local, dim).all_to_all(other).local(),
            (Sbp::Broadcast, Sbp::Broadcast) | (Sbp::Partial, Sbp::Partial) => local,
        };
        Self { local, shape, layout: layout.with(axis, to), context }
    }
}
