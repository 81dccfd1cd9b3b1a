//! Stages that are chosen automatically.

use std::ops::Range;

use super::least_largest::least_largest;
use super::units::units;
use super::{PartitionError, repeated};

/// Consecutive segments that one stage runs as one.
///
/// With one chunk a stage has one part. The interleaved schedule gives each stage several, dealt round:
///
/// ```text
/// part    0 1 2 3 4 5     2 stages, 3 chunks
/// stage   0 1 0 1 0 1
/// chunk   0 0 1 1 2 2
/// ```
///
/// ```
/// # use epl_core::schedule::partition::{PartitionError, parts_of};
/// let parts = parts_of(&[1.0; 6], &["block"; 6], 2, 3)?;
/// let placed: Vec<_> = parts.iter().map(|part| (part.stage, part.chunk)).collect();
/// assert_eq!(placed, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
/// # Ok::<_, PartitionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelChunk {
    /// The stage that runs it.
    pub stage: usize,
    /// Which of its stage's parts it is.
    pub chunk: usize,
    /// Its segments.
    pub segments: Range<usize>,
}

/// Divides a chain into `stages` consecutive ranges that cover it, none empty.
///
/// `costs` and `kinds` hold one entry a segment; segments of equal kind (a hash of parameter shapes, a name) are
/// repeated blocks. Where a run of them has at least one for every stage and is at least half of the chain, the
/// blocks are divided evenly, whatever their costs: what stands before goes to the first stage, what stands behind to
/// the last, and a remainder to the stages that carry neither. Otherwise the largest stage's cost is the least
/// possible, and of several such divisions the most even one is taken.
///
/// # Errors
///
/// No stage, fewer segments than stages, a cost that is negative or not finite, or lists of different length.
///
/// ```
/// # use epl_core::schedule::partition;
/// let kinds = ["embedding", "block", "block", "block", "block", "block", "block", "head"];
/// let costs = [3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0];
/// assert_eq!(partition::stages_of(&costs, &kinds, 4)?, [0..2, 2..4, 4..6, 6..8]);
/// # Ok::<(), partition::PartitionError>(())
/// ```
pub fn stages_of<K: PartialEq>(costs: &[f64], kinds: &[K], stages: usize) -> Result<Vec<Range<usize>>, PartitionError> {
    let parts = parts_of(costs, kinds, stages, 1)?;
    Ok(parts.into_iter().map(|part| part.segments).collect())
}

/// Divides a chain for the interleaved schedule: `stages` × `chunks` consecutive parts, part k on stage k mod `stages`.
///
/// The rule is that of [`stages_of`], with parts in place of stages.
///
/// ```
/// # use epl_core::schedule::partition::{ModelChunk, PartitionError, parts_of};
/// let kinds = ["embedding", "block", "block", "block", "block", "head"];
/// let parts = parts_of(&[3.0, 1.0, 1.0, 1.0, 1.0, 4.0], &kinds, 2, 2)?;
/// assert_eq!(parts.iter().map(|part| part.segments.clone()).collect::<Vec<_>>(), [0..2, 2..3, 3..4, 4..6]);
/// assert_eq!(parts[2], ModelChunk { stage: 0, chunk: 1, segments: 3..4 });
/// # Ok::<_, PartitionError>(())
/// ```
///
/// # Errors
///
/// As [`stages_of`]; also no chunk, or fewer segments than parts.
pub fn parts_of<K: PartialEq>(
    costs: &[f64],
    kinds: &[K],
    stages: usize,
    chunks: usize,
) -> Result<Vec<ModelChunk>, PartitionError> {
    let parts = count(costs.len(), stages, chunks)?;
    if costs.len() != kinds.len() {
        return Err(PartitionError::KindsDisagree { costs: costs.len(), kinds: kinds.len() });
    }
    let costs = units(costs)?;
    let ranges = match repeated::blocks(kinds, parts) {
        Some(blocks) => repeated::evenly(&costs, &blocks, parts),
        None => least_largest(&costs, parts),
    };
    let part = |(index, segments)| ModelChunk { stage: index % stages, chunk: index / stages, segments };
    Ok(ranges.into_iter().enumerate().map(part).collect())
}

/// How many parts there are, where the chain can fill them.
fn count(segments: usize, stages: usize, chunks: usize) -> Result<usize, PartitionError> {
    if stages == 0 {
        return Err(PartitionError::Zero { what: "the number of stages" });
    }
    if chunks == 0 {
        return Err(PartitionError::Zero { what: "the number of chunks" });
    }
    let parts = stages.checked_mul(chunks).ok_or(PartitionError::TooManyParts { stages, chunks })?;
    if segments < parts {
        return Err(PartitionError::TooFewSegments { segments, stages, chunks, parts });
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<char> {
        text.chars().collect()
    }

    #[test]
    fn chunks_are_dealt_round() {
        let parts = parts_of(&[1.0; 8], &kinds("bbbbbbbb"), 2, 2).unwrap();
        let told: Vec<_> = parts.iter().map(|part| (part.stage, part.chunk, part.segments.clone())).collect();
        assert_eq!(told, [(0, 0, 0..2), (1, 0, 2..4), (0, 1, 4..6), (1, 1, 6..8)]);
    }

    #[test]
    fn blocks_are_even_whatever_the_ends_cost() {
        let costs = [9.0, 1.0, 1.0, 1.0, 1.0, 9.0];
        assert_eq!(stages_of(&costs, &kinds("ebbbbh"), 2).unwrap(), [0..3, 3..6]);
        assert_eq!(stages_of(&costs, &kinds("ebbbbh"), 4).unwrap(), [0..2, 2..3, 3..4, 4..6]);
        // Too few blocks for five stages: by cost.
        assert_eq!(stages_of(&costs, &kinds("ebbbbh"), 5).unwrap(), [0..1, 1..2, 2..3, 3..5, 5..6]);
    }

    #[test]
    fn a_run_that_is_the_smaller_part_does_not_decide() {
        // Four equal blocks in the middle of nine others: dividing only them would leave 5 | 4 + 4 around.
        let costs = [1.0; 13];
        let sizes: Vec<_> = stages_of(&costs, &kinds("abcdexxxxfghi"), 4).unwrap().iter().map(Range::len).collect();
        assert_eq!(sizes, [3, 3, 3, 4]);
    }

    #[test]
    fn errors_tell_both_numbers_and_the_remedy() {
        let fault = |costs: &[f64], stages, chunks| {
            parts_of(costs, &vec!['b'; costs.len()], stages, chunks).unwrap_err().to_string()
        };
        assert_eq!(
            fault(&[1.0; 3], 2, 2),
            "3 segments cannot fill 2 stages × 2 chunks = 4 parts; \
             use at most 3 parts, or cut the model into at least 4 segments"
        );
        assert_eq!(fault(&[1.0], 0, 1), "the number of stages is 0; it must be at least 1");
        assert_eq!(fault(&[1.0], 1, 0), "the number of chunks is 0; it must be at least 1");
        assert!(fault(&[1.0], usize::MAX, 2).contains("too many parts"));
        assert!(fault(&[1.0, -2.0], 1, 1).starts_with("segment 1 costs -2;"));
        let text = stages_of(&[1.0; 3], &kinds("bb"), 2).unwrap_err().to_string();
        assert!(text.starts_with("3 segments have a cost, but 2 have a kind;"), "{text}");
    }
}
