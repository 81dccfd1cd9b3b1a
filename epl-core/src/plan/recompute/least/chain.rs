//! The chain's measures as whole numbers, with sums of any stretch at hand.

use std::ops::Range;

use super::SegmentMemory;

/// What a step from one boundary to a later one adds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hop {
    /// The boundary it leads to.
    pub(super) end: usize,
    /// Whether its segments are recomputed.
    pub(super) run: bool,
    /// Bytes kept.
    pub(super) kept: u64,
    /// Cost recomputed.
    pub(super) cost: u64,
}

/// Sums up to every boundary, 0 to n, and each segment's carry.
pub(super) struct CostChain {
    activations: Vec<u64>,
    costs: Vec<u64>,
    carries: Vec<u64>,
}

impl CostChain {
    pub(super) fn new(segments: &[SegmentMemory], costs: Vec<u64>) -> Self {
        Self {
            activations: up_to(segments.iter().map(|segment| segment.activation_bytes)),
            costs: up_to(costs.into_iter()),
            carries: segments.iter().map(|segment| segment.carry_bytes).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.carries.len()
    }

    /// Everything that a run's activations can sum to, ascending, and 0 for no run.
    pub(super) fn caps(&self) -> Vec<u64> {
        let ends = |start: usize| (start + 1..=self.len()).map(move |end| start..end);
        let mut caps: Vec<u64> = (0..self.len()).flat_map(ends).map(|run| self.activations(&run)).collect();
        caps.push(0);
        caps.sort_unstable();
        caps.dedup();
        caps
    }

    /// The ways on from a boundary: the next segment stored, or a run of at most `cap` bytes, shortest first.
    pub(super) fn steps(&self, start: usize, cap: u64) -> impl Iterator<Item = Hop> {
        let stored = Hop { end: start + 1, run: false, kept: self.activations(&(start..start + 1)), cost: 0 };
        let run =
            move |end| Hop { end, run: true, kept: self.carries[start], cost: self.costs[end] - self.costs[start] };
        let fits = move |end: &usize| self.activations(&(start..*end)) <= cap;
        std::iter::once(stored).chain((start + 1..=self.len()).take_while(fits).map(run))
    }

    fn activations(&self, run: &Range<usize>) -> u64 {
        self.activations[run.end] - self.activations[run.start]
    }
}

fn up_to(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let sums = values.scan(0, |sum, value| {
        *sum += value;
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}
