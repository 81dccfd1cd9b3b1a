//! The way from one layout to another: which axis changes next.
//!
//! A step changes one axis, as the one-axis layouts do. Only the innermost axis that splits a dim can give it up, and
//! an axis that begins to split a dim becomes its innermost one. So where several axes split one dim, the steps come in
//! an order that keeps the nesting; where they are in each other's way, one of them is gathered first:
//!
//! ```text
//! data: S(0), tensor: S(1)  ─▶  data: S(1), tensor: S(0)
//!       data: S(0) ─▶ B           all-gather, to make room
//!       tensor: S(1) ─▶ S(0)      all-to-all
//!       data: B ─▶ S(1)           own slice
//! ```
//!
//! Of the steps that are possible, the one that leaves the smallest local tensor comes first.

use epl_core::Axis;

use super::layout::{Layout, Sbp};

/// The steps from one layout to another: each an axis and what it becomes. The same on every rank.
pub(super) fn route(from: &Layout, to: &Layout) -> Vec<(Axis, Sbp)> {
    let mut now = from.clone();
    let mut steps = Vec::new();
    while let Some((axis, sbp)) = next(&now, to) {
        now = now.with(axis, sbp);
        steps.push((axis, sbp));
    }
    steps
}

fn next(now: &Layout, to: &Layout) -> Option<(Axis, Sbp)> {
    let named = now.axes().iter().chain(to.axes()).map(|(axis, _)| *axis);
    let open: Vec<Axis> = named.filter(|axis| !is_final(*axis, now, to)).collect();
    let direct = open.iter().filter(|axis| can_leave(**axis, now) && can_enter(**axis, now, to));
    let cheapest = direct.min_by_key(|axis| cost(now.along(**axis), to.along(**axis)));
    // Where no axis can go straight, one that can leave makes room.
    let blocking = || open.iter().find(|axis| matches!(now.along(**axis), Sbp::Split(_)) && can_leave(**axis, now));
    match cheapest {
        Some(axis) => Some((*axis, to.along(*axis))),
        None => blocking().map(|axis| (*axis, Sbp::Broadcast)),
    }
}

/// Whether an axis is what it is to be, and splits inside the same axes.
fn is_final(axis: Axis, now: &Layout, to: &Layout) -> bool {
    let outside = |layout: &Layout, dim| layout.splitters(dim).take_while(|outer| *outer != axis).collect::<Vec<_>>();
    match (now.along(axis), to.along(axis)) {
        (Sbp::Split(dim), Sbp::Split(same)) if dim == same => outside(now, dim) == outside(to, dim),
        (now, to) => now == to,
    }
}

/// Whether nothing is cut inside the parts of this axis.
fn can_leave(axis: Axis, now: &Layout) -> bool {
    match now.along(axis) {
        Sbp::Split(dim) => now.splitters(dim).last() == Some(axis),
        Sbp::Broadcast | Sbp::Partial => true,
    }
}

/// Whether all axes that are to split outside of this one do so already, and no other.
fn can_enter(axis: Axis, now: &Layout, to: &Layout) -> bool {
    match to.along(axis) {
        Sbp::Split(dim) => now.splitters(dim).eq(to.splitters(dim).take_while(|outer| *outer != axis)),
        Sbp::Broadcast | Sbp::Partial => true,
    }
}

/// Smaller where less is left to move.
fn cost(from: Sbp, to: Sbp) -> usize {
    match (from, to) {
        (Sbp::Broadcast | Sbp::Partial, Sbp::Split(_)) => 0,
        (Sbp::Split(_), Sbp::Split(_)) => 1,
        (Sbp::Partial, Sbp::Broadcast | Sbp::Partial) => 2,
        (Sbp::Broadcast, Sbp::Broadcast | Sbp::Partial) => 3,
        (Sbp::Split(_), Sbp::Broadcast | Sbp::Partial) => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::Sbp::{Broadcast as B, Partial as P, Split as S};
    use super::*;

    const AXES: [Axis; 3] = [Axis::Data, Axis::Tensor, Axis::Pipeline];

    fn layout<const N: usize>(states: [Sbp; N]) -> Layout {
        AXES.into_iter().zip(states).collect()
    }

    fn steps<const N: usize>(from: [Sbp; N], to: [Sbp; N]) -> Vec<(Axis, Sbp)> {
        route(&layout(from), &layout(to))
    }

    #[test]
    fn an_axis_goes_straight_where_it_can() {
        let (data, tensor) = (Axis::Data, Axis::Tensor);
        assert_eq!(steps([S(0), S(1)], [S(0), S(1)]), []);
        assert_eq!(steps([S(0), B], [S(1), B]), [(data, S(1))]);
        assert_eq!(steps([S(0), S(0)], [S(0), S(1)]), [(tensor, S(1))]);
        assert_eq!(steps([P, S(0)], [S(1), B]), [(data, S(1)), (tensor, B)]);
        assert_eq!(steps([S(0), P], [B, S(0)]), [(data, B), (tensor, S(0))]);
    }

    #[test]
    fn axes_that_are_in_each_others_way_make_room() {
        let (data, tensor) = (Axis::Data, Axis::Tensor);
        assert_eq!(steps([S(0), S(1)], [S(1), S(0)]), [(data, B), (tensor, S(0)), (data, S(1))]);
        // The inner axis keeps its dim, but of the whole.
        assert_eq!(steps([S(0), S(0)], [B, S(0)]), [(tensor, B), (data, B), (tensor, S(0))]);
    }

    #[test]
    fn the_order_of_axes_that_split_one_dim_counts() {
        let (data, tensor) = (Axis::Data, Axis::Tensor);
        let swapped = Layout::from([(tensor, S(0)), (data, S(0))]);
        assert_eq!(route(&layout([S(0), S(0)]), &swapped), [(tensor, B), (data, B), (tensor, S(0)), (data, S(0))]);
        let other_dims = Layout::from([(tensor, S(1)), (data, S(0))]);
        assert_eq!(route(&layout([S(0), S(1)]), &other_dims), []);
    }

    /// Every pair over three axes: the route ends, and at the layout that was asked for.
    #[test]
    fn every_route_arrives() {
        let states = [S(0), S(1), B, P];
        let every =
            || (0..64).map(|code: usize| layout([code & 3, code >> 2 & 3, code >> 4].map(|state| states[state])));
        for (from, to) in every().flat_map(|from| every().map(move |to| (from.clone(), to))) {
            let steps = route(&from, &to);
            assert!(steps.len() <= 6, "{from} to {to}: {steps:?}");
            let reached = steps.iter().fold(from.clone(), |now, (axis, sbp)| now.with(*axis, *sbp));
            for axis in AXES {
                assert_eq!(reached.along(axis), to.along(axis), "{from} to {to}");
            }
            for dim in 0..2 {
                assert!(reached.splitters(dim).eq(to.splitters(dim)), "{from} to {to}: {reached}");
            }
        }
    }
}
