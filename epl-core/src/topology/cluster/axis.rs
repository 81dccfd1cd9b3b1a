//! The axes of the mesh, and a rank's place on them.
//!
//! A rank's position is a number in a mixed radix. Its digits, slowest first, in EPL's order:
//!
//! ```text
//!    expert_data   expert   pipeline   tensor
//!    '-------.---------'
//!          data              expert divides data: data = expert_data × experts + expert
//! ```
//!
//! An axis is one digit, or, for data, two. The ranks of a group along an axis are those that differ
//! in the axis' digits only. Another axis (context) is another digit.

use std::fmt;

/// An axis of the device mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// The replicas; the batch is divided over it.
    Data,
    /// The stages of a replica.
    Pipeline,
    /// The slices of split layers.
    Tensor,
    /// Neighbouring data ranks, over which experts are divided.
    Expert,
    /// Data ÷ expert: the ranks that hold the same experts.
    ExpertData,
}

impl Axis {
    /// All axes.
    pub const ALL: [Axis; 5] = [Axis::Data, Axis::Pipeline, Axis::Tensor, Axis::Expert, Axis::ExpertData];

    /// A name for groups, plans and messages: `expert_data`.
    pub const fn name(self) -> &'static str {
        match self {
            Axis::Data => "data",
            Axis::Pipeline => "pipeline",
            Axis::Tensor => "tensor",
            Axis::Expert => "expert",
            Axis::ExpertData => "expert_data",
        }
    }

    /// Whether the axes are not independent: experts divide data, so data overlaps expert and expert_data.
    pub fn overlaps(self, other: Axis) -> bool {
        self.digits().iter().any(|digit| other.digits().contains(digit))
    }

    /// The digits of a position that this axis covers, slowest first.
    pub(crate) const fn digits(self) -> &'static [Digit] {
        match self {
            Axis::Data => &[Digit::ExpertData, Digit::Expert],
            Axis::Pipeline => &[Digit::Pipeline],
            Axis::Tensor => &[Digit::Tensor],
            Axis::Expert => &[Digit::Expert],
            Axis::ExpertData => &[Digit::ExpertData],
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What positions are counted in. Axes may share a digit; digits are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digit {
    ExpertData,
    Expert,
    Pipeline,
    Tensor,
}

/// Where a rank stands on every axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Coordinate {
    /// Its replica.
    pub data: usize,
    /// Its stage.
    pub pipeline: usize,
    /// Its slice of split layers.
    pub tensor: usize,
    /// Its share of the experts: `data % expert size`.
    pub expert: usize,
    /// Its expert group: `data ÷ expert size`.
    pub expert_data: usize,
}

impl Coordinate {
    /// The coordinate on one axis: the rank's position in its group along that axis.
    pub const fn along(&self, axis: Axis) -> usize {
        match axis {
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
            Axis::Tensor => self.tensor,
            Axis::Expert => self.expert,
            Axis::ExpertData => self.expert_data,
        }
    }
}

impl fmt::Display for Coordinate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { data, pipeline, tensor, expert, .. } = self;
        write!(f, "data {data}, pipeline {pipeline}, tensor {tensor}, expert {expert}")
    }
}
