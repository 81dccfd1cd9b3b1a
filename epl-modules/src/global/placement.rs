//! Which ranks a global tensor lies on, printable.

use core::fmt;

use epl_core::{Axis, Context};

/// The ranks that a global tensor lies on, by the axes that its layout names.
///
/// Printed with the outer axis first: `data × tensor [[0, 1], [2, 3]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    axes: Vec<Axis>,
    sizes: Vec<usize>,
    ranks: Vec<usize>,
}

impl Placement {
    pub(super) fn new(axes: Vec<Axis>, context: &Context) -> Self {
        let mesh = context.mesh();
        let own = context.world().rank();
        // In a layer that is whole the tensor axis is each rank alone.
        let along = |axis: &Axis, rank| match context.axis(*axis).size() {
            1 => vec![rank],
            _ => mesh.group(*axis, rank),
        };
        let members = |ranks: Vec<usize>, axis: &Axis| ranks.into_iter().flat_map(|rank| along(axis, rank)).collect();
        let ranks = axes.iter().fold(vec![own], members);
        Self { sizes: axes.iter().map(|axis| along(axis, own).len()).collect(), axes, ranks }
    }

    /// The axes, outer ones first.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// How many ranks lie along every axis.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The ranks in row-major order: the last axis runs fastest.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.axes.iter().map(|axis| axis.name()).collect();
        let name = if names.is_empty() { "rank".to_string() } else { names.join(" × ") };
        write!(f, "{name} {}", nested(&self.sizes, &self.ranks))
    }
}

fn nested(sizes: &[usize], ranks: &[usize]) -> String {
    let Some((first, rest)) = sizes.split_first() else {
        return ranks.iter().map(usize::to_string).collect();
    };
    let parts: Vec<String> = ranks.chunks(ranks.len() / first).map(|part| nested(rest, part)).collect();
    format!("[{}]", parts.join(", "))
}
