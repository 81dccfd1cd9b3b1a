//! A choice of what is recomputed, and what it stores.

use std::ops::Range;

use super::SegmentMemory;
use crate::schedule::run_of;

/// The runs of segments that are recomputed; all others keep their activations.
///
/// Runs are in order, none is empty, and no two overlap. Two may touch: the carry between them is then kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recomputation {
    runs: Vec<Range<usize>>,
}

impl Recomputation {
    /// The runs are the crate's own, and checked by nothing but its tests.
    pub(super) fn new(runs: Vec<Range<usize>>) -> Self {
        Self { runs }
    }

    /// The recomputed runs of segments.
    pub fn runs(&self) -> &[Range<usize>] {
        &self.runs
    }

    /// The run that a segment belongs to; none where it keeps its activations.
    pub fn run_of(&self, segment: usize) -> Option<&Range<usize>> {
        run_of(&self.runs, segment)
    }

    /// Bytes that one micro-batch keeps from its forward to its backward: the activations of segments that are not
    /// recomputed, and the carry that enters each run.
    pub fn kept_bytes(&self, segments: &[SegmentMemory]) -> u64 {
        let all: u64 = segments.iter().map(|segment| segment.activation_bytes).sum();
        let again: u64 = self.runs.iter().map(|run| activations(segments, run)).sum();
        let carries: u64 = self.runs.iter().map(|run| segments[run.start].carry_bytes).sum();
        all - again + carries
    }

    /// Bytes of the largest run's activations, which are stored while its backward runs.
    pub fn largest_run_bytes(&self, segments: &[SegmentMemory]) -> u64 {
        self.runs.iter().map(|run| activations(segments, run)).max().unwrap_or(0)
    }

    /// The peak: what `in_flight` micro-batches keep, and one run's activations besides, the largest.
    ///
    /// For a single micro-batch this is never too low: its last run meets everything kept, its first one only what
    /// was kept before it. For several the newest micro-batches are whole when the oldest one's backward runs.
    pub fn peak_bytes(&self, segments: &[SegmentMemory], in_flight: u64) -> u64 {
        in_flight * self.kept_bytes(segments) + self.largest_run_bytes(segments)
    }

    /// Forward cost that is paid twice.
    pub fn recomputed_cost(&self, segments: &[SegmentMemory]) -> f64 {
        self.runs.iter().flat_map(|run| &segments[run.clone()]).map(|segment| segment.forward_cost).sum()
    }
}

fn activations(segments: &[SegmentMemory], run: &Range<usize>) -> u64 {
    segments[run.clone()].iter().map(|segment| segment.activation_bytes).sum()
}
