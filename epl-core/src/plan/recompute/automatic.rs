//! EPL's `gradient_checkpoint.type = "auto"`.

use std::ops::Range;

use super::{Recomputation, RecomputeError, SegmentMemory};
use crate::schedule::partition::{least_largest, units};

/// Keeps the boundaries of repeated blocks and recomputes everything between; without repeats, cuts the chain into
/// about √n runs of equal activation bytes.
///
/// `kinds` holds one entry a segment: a kind that occurs twice or more, side by side or not, is a repeated block. What
/// lies between two blocks, before the first or behind the last is one run.
///
/// ```text
/// embedding position block block block norm head        2 + 3 blocks + 2 segments
/// └────── run ─────┘ └run─┘└run─┘└run─┘└── run ─┘
/// ```
/// This is the rule of EPL's `auto_gradient_checkpoint.py`, whose blocks are found among operations and must occur
/// four times; √n is rounded to the nearest whole number, and the largest of the runs is as small as it can be.
///
/// ```
/// # use epl_core::plan::recompute::{SegmentMemory, epl_auto};
/// let segment = SegmentMemory { activation_bytes: 100, carry_bytes: 10, forward_cost: 1.0 };
/// let chosen = epl_auto(&[segment; 7], &["embedding", "position", "block", "block", "block", "norm", "head"])?;
/// assert_eq!(chosen.runs(), [0..2, 2..3, 3..4, 4..5, 5..7]);
/// // Each run keeps what enters it; the largest is stored whole while its backward runs.
/// assert_eq!(chosen.peak_bytes(&[segment; 7], 1), 5 * 10 + 2 * 100);
/// # Ok::<_, epl_core::plan::recompute::RecomputeError>(())
/// ```
///
/// # Errors
///
/// No segment, or lists of different length.
pub fn epl_auto<K: PartialEq>(segments: &[SegmentMemory], kinds: &[K]) -> Result<Recomputation, RecomputeError> {
    if segments.is_empty() {
        return Err(RecomputeError::NoSegment);
    }
    if segments.len() != kinds.len() {
        return Err(RecomputeError::KindsDisagree { segments: segments.len(), kinds: kinds.len() });
    }
    let blocks = repeated(kinds);
    let runs = if blocks.contains(&true) { around(&blocks) } else { roots(segments)? };
    Ok(Recomputation::new(runs))
}

/// Which segments are repeated blocks.
fn repeated<K: PartialEq>(kinds: &[K]) -> Vec<bool> {
    kinds.iter().map(|kind| kinds.iter().filter(|other| *other == kind).count() > 1).collect()
}

/// Each block a run, and each stretch between blocks.
fn around(blocks: &[bool]) -> Vec<Range<usize>> {
    let mut start = 0;
    blocks
        .chunk_by(|one, next| !one && !next)
        .map(|run| {
            start += run.len();
            start - run.len()..start
        })
        .collect()
}

/// About √n runs of equal activation bytes.
fn roots(segments: &[SegmentMemory]) -> Result<Vec<Range<usize>>, RecomputeError> {
    let bytes: Vec<f64> = segments.iter().map(|segment| segment.activation_bytes as f64).collect();
    let runs = (segments.len() as f64).sqrt().round() as usize;
    Ok(least_largest(&units(&bytes)?, runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(bytes: &[u64]) -> Vec<SegmentMemory> {
        bytes
            .iter()
            .map(|&activation_bytes| SegmentMemory { activation_bytes, carry_bytes: 1, forward_cost: 1.0 })
            .collect()
    }

    fn runs(bytes: &[u64], kinds: &str) -> Vec<Range<usize>> {
        epl_auto(&chain(bytes), kinds.as_bytes()).unwrap().runs().to_vec()
    }

    #[test]
    fn boundaries_of_blocks_are_kept() {
        assert_eq!(runs(&[1; 7], "epbbbnh"), [0..2, 2..3, 3..4, 4..5, 5..7]);
        // Two kinds in turn, and a stretch between blocks.
        assert_eq!(runs(&[1; 7], "ababxya"), [0..1, 1..2, 2..3, 3..4, 4..6, 6..7]);
    }

    #[test]
    fn without_blocks_the_bytes_are_even() {
        assert_eq!(runs(&[1; 9], "abcdefghi"), [0..3, 3..6, 6..9]);
        assert_eq!(runs(&[4, 1, 1, 1, 1], "abcde"), [0..1, 1..5]);
        assert_eq!(runs(&[7], "a"), [0..1]);
    }

    #[test]
    fn wrong_lists_are_errors() {
        assert_eq!(epl_auto::<u8>(&[], &[]), Err(RecomputeError::NoSegment));
        let text = epl_auto(&chain(&[1, 2]), b"a").unwrap_err().to_string();
        assert!(text.starts_with("2 segments are measured, but 1 have a kind;"), "{text}");
    }
}
