//! What each axis of the mesh does with a global tensor.

use core::fmt;
use core::ops::Range;

use epl_comm::shard_range;
use epl_core::{Axis, Context};

use crate::invalid::refuse;

/// What one axis of the mesh does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sbp {
    /// Each rank of the axis holds its part of this dim, by [`shard_range`].
    Split(usize),
    /// Every rank of the axis holds the same.
    Broadcast,
    /// The tensor is the sum of what the ranks of the axis hold.
    Partial,
}

impl fmt::Display for Sbp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sbp::Split(dim) => write!(f, "S({dim})"),
            Sbp::Broadcast => f.write_str("B"),
            Sbp::Partial => f.write_str("P"),
        }
    }
}

/// How a global tensor lies on the axes of the mesh: one [`Sbp`] an axis. An axis that is not named is
/// [`Broadcast`](Sbp::Broadcast).
///
/// Where several axes split the same dim, the one that is named first cuts first, and the next one cuts its parts.
///
/// ```
/// use epl_core::Axis;
/// use epl_modules::{Layout, Sbp};
///
/// let layout = Layout::from([(Axis::Data, Sbp::Split(0)), (Axis::Tensor, Sbp::Split(1))]);
/// assert_eq!(layout.to_string(), "data: S(0), tensor: S(1)");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout(Vec<(Axis, Sbp)>);

impl<const N: usize> From<[(Axis, Sbp); N]> for Layout {
    fn from(axes: [(Axis, Sbp); N]) -> Self {
        Self(axes.to_vec())
    }
}

impl FromIterator<(Axis, Sbp)> for Layout {
    fn from_iter<I: IntoIterator<Item = (Axis, Sbp)>>(axes: I) -> Self {
        Self(axes.into_iter().collect())
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("replicated");
        }
        let axes: Vec<String> = self.0.iter().map(|(axis, sbp)| format!("{axis}: {sbp}")).collect();
        f.write_str(&axes.join(", "))
    }
}

impl Layout {
    /// The axes that are named, outer ones first.
    pub fn axes(&self) -> &[(Axis, Sbp)] {
        &self.0
    }

    /// What an axis does with the tensor.
    pub fn along(&self, axis: Axis) -> Sbp {
        self.0.iter().find(|(named, _)| *named == axis).map_or(Sbp::Broadcast, |(_, sbp)| *sbp)
    }

    /// Which part of a tensor with this global shape is this rank's, dim by dim.
    pub fn ranges<const D: usize>(&self, shape: [usize; D], context: &Context) -> [Range<usize>; D] {
        core::array::from_fn(|dim| {
            self.splitters(dim).fold(0..shape[dim], |part, axis| {
                let group = context.axis(axis);
                let inner = shard_range(part.len(), group.size(), group.rank());
                part.start + inner.start..part.start + inner.end
            })
        })
    }

    /// The axes that split a dim, outer ones first.
    pub(super) fn splitters(&self, dim: usize) -> impl Iterator<Item = Axis> {
        self.0.iter().filter(move |(_, sbp)| *sbp == Sbp::Split(dim)).map(|(axis, _)| *axis)
    }

    /// Whether this rank holds the values where every rank but the first of a partial axis holds zeros.
    pub(super) fn holds_values(&self, context: &Context) -> bool {
        self.0.iter().all(|(axis, sbp)| *sbp != Sbp::Partial || context.axis(*axis).rank() == 0)
    }

    /// The layout with another state of one axis, which becomes the innermost.
    pub(super) fn with(&self, axis: Axis, sbp: Sbp) -> Self {
        self.0.iter().copied().filter(|(named, _)| *named != axis).chain([(axis, sbp)]).collect()
    }

    /// The layout without what changes nothing: axes of one rank, and those that hold the same everywhere.
    pub(super) fn essential(&self, context: &Context) -> Self {
        let kept = |(axis, sbp): &(Axis, Sbp)| *sbp != Sbp::Broadcast && context.axis(*axis).size() > 1;
        self.0.iter().copied().filter(kept).collect()
    }

    /// Refuses a dim that a tensor of `D` dims does not have, and axes that are not independent.
    pub(super) fn check<const D: usize>(&self) {
        for (index, (axis, sbp)) in self.0.iter().enumerate() {
            if let Sbp::Split(dim) = sbp
                && *dim >= D
            {
                refuse(format!(
                    "the layout `{self}` splits dim {dim} of a tensor of {D} dims over the {axis} axis; dims count \
                     from 0, so give one below {D}"
                ));
            }
            for (other, also) in &self.0[..index] {
                if other == axis {
                    refuse(format!("the layout names the {axis} axis twice, as {also} and as {sbp}; name it once"));
                }
                if other.overlaps(*axis) {
                    refuse(format!(
                        "the layout `{self}` names the {other} axis and the {axis} axis, which are not independent, as \
                         experts divide data; name data alone, or expert and expert_data"
                    ));
                }
            }
        }
    }
}
