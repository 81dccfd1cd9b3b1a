//! Which stage runs which segments.

use core::fmt;
use std::ops::Range;

/// A chain of segments, cut into parts, which go round the stages: part k is run by stage k mod stages.
///
/// ```text
/// segments   0 1 2 3 4 5 6 7        4 parts on 2 stages
/// part       0 ┆ 1 ┆ 2 ┆ 3
/// stage      0 ┆ 1 ┆ 0 ┆ 1          each stage has 2 chunks
/// ```
///
/// ```
/// # use epl_core::schedule::Stages;
/// let stages = Stages::new(vec![0..2, 2..4, 4..6, 6..8], 2);
/// assert_eq!((stages.count(), stages.chunks()), (2, 2));
/// let second = stages.part(1, 1); // the second chunk of stage 1
/// assert_eq!((second, stages.of_part(second), &stages.parts()[second]), (3, 1, &(6..8)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages {
    parts: Vec<Range<usize>>,
    stages: usize,
}

impl Stages {
    /// One stage that runs all of `segments` segments.
    pub fn one(segments: usize) -> Self {
        Self { parts: vec![Range { start: 0, end: segments }], stages: 1 }
    }

    /// Parts that go round `stages` stages.
    ///
    /// # Panics
    ///
    /// When they are not consecutive, one is empty, or some stage would have fewer than another.
    pub fn new(parts: Vec<Range<usize>>, stages: usize) -> Self {
        assert!(stages > 0 && !parts.is_empty() && parts.len().is_multiple_of(stages), "{parts:?} on {stages} stages");
        let ends = parts.iter().scan(0, |end, part| Some((core::mem::replace(end, part.end), part.clone())));
        assert!(ends.into_iter().all(|(end, part)| part.start == end && part.end > end), "parts {parts:?}");
        Self { parts, stages }
    }

    /// How many stages there are.
    pub fn count(&self) -> usize {
        self.stages
    }

    /// The parts, in the order of the model.
    pub fn parts(&self) -> &[Range<usize>] {
        &self.parts
    }

    /// How many parts each stage runs.
    pub fn chunks(&self) -> usize {
        self.parts.len() / self.stages
    }

    /// The number of the part that is a stage's chunk.
    pub fn part(&self, stage: usize, chunk: usize) -> usize {
        chunk * self.stages + stage
    }

    /// The stage that runs a part.
    pub fn of_part(&self, part: usize) -> usize {
        part % self.stages
    }

    /// The parts that a stage runs, in the order of the model.
    pub fn of_stage(&self, stage: usize) -> impl Iterator<Item = &Range<usize>> {
        (0..self.chunks()).map(move |chunk| &self.parts[self.part(stage, chunk)])
    }

    /// The stage that runs a segment.
    pub fn of_segment(&self, segment: usize) -> usize {
        let part = self.parts.partition_point(|part| part.end <= segment);
        self.of_part(part.min(self.parts.len() - 1))
    }

    /// The parts of a stage that have some of these segments, in their order: their numbers, and what they have of them.
    pub fn parts_within(&self, stage: usize, segments: &Range<usize>) -> Vec<(usize, Range<usize>)> {
        let within = |part: &Range<usize>| part.start.max(segments.start)..part.end.min(segments.end);
        let parts = (0..self.chunks()).map(|chunk| self.part(stage, chunk));
        parts.map(|part| (part, within(&self.parts[part]))).filter(|(_, within)| !within.is_empty()).collect()
    }

    /// The stages that run some of these segments, each once, the first one first.
    pub fn of_segments(&self, segments: &[usize]) -> Vec<usize> {
        let mut stages: Vec<usize> = segments.iter().map(|segment| self.of_segment(*segment)).collect();
        stages.sort_unstable();
        stages.dedup();
        stages
    }
}

/// The one of some runs of segments, which ascend, that has a segment.
pub(crate) fn run_of(runs: &[Range<usize>], segment: usize) -> Option<&Range<usize>> {
    runs.get(runs.partition_point(|run| run.end <= segment)).filter(|run| run.contains(&segment))
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for stage in 0..self.stages {
            let parts: Vec<String> = self.of_stage(stage).map(|part| format!("{}..{}", part.start, part.end)).collect();
            let separator = if stage == 0 { "" } else { "; " };
            write!(f, "{separator}stage {stage}: segments {}", parts.join(" and "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_go_round_the_stages() {
        let stages = Stages::new(vec![0..2, 2..3, 3..5, 5..8], 2);
        assert_eq!((stages.count(), stages.chunks(), stages.part(1, 1)), (2, 2, 3));
        assert_eq!(stages.of_stage(1).cloned().collect::<Vec<_>>(), [2..3, 5..8]);
        assert_eq!([0, 1, 2, 3, 4, 7].map(|segment| stages.of_segment(segment)), [0, 0, 1, 0, 0, 1]);
        assert_eq!((stages.of_segments(&[7, 0, 2]), stages.of_segments(&[3, 0])), (vec![0, 1], vec![0]));
        assert_eq!(
            (stages.parts_within(0, &(1..8)), stages.parts_within(1, &(3..8))),
            (vec![(0, 1..2), (2, 3..5)], vec![(3, 5..8)])
        );
        assert_eq!(stages.to_string(), "stage 0: segments 0..2 and 3..5; stage 1: segments 2..3 and 5..8");
        assert_eq!(Stages::one(3), Stages::new(vec![Range { start: 0, end: 3 }], 1));
    }
}
