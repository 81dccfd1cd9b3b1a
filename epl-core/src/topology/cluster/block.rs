//! Ranks at positions that are numbered along the axes.

use super::axis::{Axis, Coordinate, Digit};
use super::sizes::MeshSizes;
use crate::config::RankOrder;

/// Ranks, and the digits of their positions: see [`axis`](super::axis).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    sizes: MeshSizes,
    order: RankOrder,
    /// The rank at every position.
    ranks: Vec<usize>,
}

impl Block {
    /// As many ranks as the sizes need.
    pub fn new(sizes: MeshSizes, order: RankOrder, ranks: Vec<usize>) -> Self {
        assert_eq!(ranks.len(), sizes.world(), "a block has a rank at every position");
        Self { sizes, order, ranks }
    }

    pub fn sizes(&self) -> MeshSizes {
        self.sizes
    }

    pub fn order(&self) -> RankOrder {
        self.order
    }

    /// The rank at every position.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    pub fn coordinate(&self, position: usize) -> Coordinate {
        let at = |axis| self.number(position, axis);
        Coordinate {
            data: at(Axis::Data),
            pipeline: at(Axis::Pipeline),
            tensor: at(Axis::Tensor),
            expert: at(Axis::Expert),
            expert_data: at(Axis::ExpertData),
        }
    }

    /// The ranks of the group along `axis` that a position is in, in the order of their coordinates.
    pub fn group(&self, axis: Axis, position: usize) -> Vec<usize> {
        // Back to the group's first member, then through all values of the axis' digits, the slowest first.
        let first = axis.digits().iter().fold(position, |at, digit| at - self.value(at, *digit) * self.stride(*digit));
        let mut positions = vec![first];
        for digit in axis.digits() {
            let (stride, size) = (self.stride(*digit), self.sizes.digit(*digit));
            positions = positions.iter().flat_map(|at| (0..size).map(move |value| at + value * stride)).collect();
        }
        positions.iter().map(|position| self.ranks[*position]).collect()
    }

    /// How far apart neighbours along `axis` are, and that times their number.
    pub fn extent(&self, axis: Axis) -> (usize, usize) {
        let apart = axis.digits().iter().map(|digit| self.stride(*digit)).min().unwrap_or(1);
        (apart, apart * self.sizes.along(axis))
    }

    /// The number of the group along `axis` that a position is in.
    pub fn color(&self, axis: Axis, position: usize) -> usize {
        let others = self.digits().into_iter().filter(|digit| !axis.digits().contains(digit));
        others.fold(0, |color, digit| color * self.sizes.digit(digit) + self.value(position, digit))
    }

    /// How many groups there are along `axis`.
    pub fn colors(&self, axis: Axis) -> usize {
        self.ranks.len() / self.sizes.along(axis)
    }

    /// The digits of a position, slowest first.
    fn digits(&self) -> [Digit; 4] {
        match self.order {
            RankOrder::DataPipelineTensor => [Digit::ExpertData, Digit::Expert, Digit::Pipeline, Digit::Tensor],
            RankOrder::PipelineDataTensor => [Digit::Pipeline, Digit::ExpertData, Digit::Expert, Digit::Tensor],
        }
    }

    /// How far apart two positions are that differ by one in this digit.
    fn stride(&self, digit: Digit) -> usize {
        let faster = self.digits().into_iter().rev().take_while(|other| *other != digit);
        faster.map(|other| self.sizes.digit(other)).product()
    }

    fn value(&self, position: usize, digit: Digit) -> usize {
        position / self.stride(digit) % self.sizes.digit(digit)
    }

    /// The coordinate on an axis: its digits as one number.
    fn number(&self, position: usize, axis: Axis) -> usize {
        let digits = axis.digits().iter();
        digits.fold(0, |number, digit| number * self.sizes.digit(*digit) + self.value(position, *digit))
    }
}
