//! Repeated blocks, divided evenly.

use std::cmp::Reverse;
use std::ops::Range;

/// The longest run of segments of one kind; the first of several.
fn longest_run<K: PartialEq>(kinds: &[K]) -> Range<usize> {
    let mut longest = 0..0;
    let mut start = 0;
    for run in kinds.chunk_by(|one, next| one == next) {
        if run.len() > longest.len() {
            longest = start..start + run.len();
        }
        start += run.len();
    }
    longest
}

/// The run that is divided evenly, where the chain has one: at least one block for every part, and at least half of
/// the chain.
///
/// Half, because what lies around the run goes to the first and the last part, whatever it costs. A run that is the
/// smaller part of its chain (one size of a ResNet's blocks, the encoder of an encoder and decoder) would leave most
/// of the model to those two.
pub(super) fn blocks<K: PartialEq>(kinds: &[K], parts: usize) -> Option<Range<usize>> {
    let run = longest_run(kinds);
    (run.len() >= parts && 2 * run.len() >= kinds.len()).then_some(run)
}

/// Divides the blocks evenly; what stands before them goes to the first part, what stands behind to the last.
///
/// ```text
/// 13 blocks, 4 parts     e bbb | bbb | bbbb | bbb h
/// ```
/// A remainder goes, one block each, to the parts that carry the least besides blocks: first the middle, then the
/// cheaper end. Of equals, to the later part: with one forward and one backward in turn, a later stage holds fewer
/// micro-batches.
pub(super) fn evenly(costs: &[u64], blocks: &Range<usize>, parts: usize) -> Vec<Range<usize>> {
    let (each, remainder) = (blocks.len() / parts, blocks.len() % parts);
    let carried = |part: usize| {
        let before = if part == 0 { &costs[..blocks.start] } else { &[] };
        let behind = if part + 1 == parts { &costs[blocks.end..] } else { &[] };
        // An end that costs nothing still holds its segments, so it comes after the middle.
        (before.iter().chain(behind).sum::<u64>(), before.len() + behind.len(), Reverse(part))
    };
    let mut order: Vec<usize> = (0..parts).collect();
    order.sort_by_key(|&part| carried(part));
    let mut sizes = vec![each; parts];
    order[..remainder].iter().for_each(|&part| sizes[part] += 1);
    sizes[0] += blocks.start;
    sizes[parts - 1] += costs.len() - blocks.end;
    consecutive(&sizes)
}

/// Ranges of these lengths, one behind the other.
pub(super) fn consecutive(sizes: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    sizes
        .iter()
        .map(|size| {
            let start = end;
            end += size;
            start..end
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_longest_runs_is_taken() {
        assert_eq!(longest_run(b"abbccd"), 1..3);
        assert_eq!(longest_run(b"abbccc"), 3..6);
        assert_eq!(longest_run::<u8>(&[]), 0..0);
    }

    #[test]
    fn blocks_fill_every_part_and_half_the_chain() {
        assert_eq!(blocks(b"ebbbbh", 4), Some(1..5));
        assert_eq!(blocks(b"ebbbbh", 5), None);
        assert_eq!(blocks(b"ebbh", 2), Some(1..3));
        assert_eq!(blocks(b"efbbh", 2), None);
    }

    #[test]
    fn equal_ends_leave_the_last_part_more() {
        // Neither end carries anything: later parts take the remainder.
        assert_eq!(evenly(&[1; 5], &(0..5), 3), [0..1, 1..3, 3..5]);
        // Two parts, the same beside both.
        assert_eq!(evenly(&[4, 1, 1, 1, 4], &(1..4), 2), [0..2, 2..5]);
        // The head is cheaper, then the embedding.
        assert_eq!(evenly(&[4, 1, 1, 1, 3], &(1..4), 2), [0..2, 2..5]);
        assert_eq!(evenly(&[3, 1, 1, 1, 4], &(1..4), 2), [0..3, 3..5]);
        // An end without cost is still an end.
        assert_eq!(evenly(&[0, 1, 1, 1, 1, 0], &(1..5), 3), [0..2, 2..4, 4..6]);
    }
}
