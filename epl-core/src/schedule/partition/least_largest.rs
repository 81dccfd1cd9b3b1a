//! Parts whose largest is as small as it can be.

use std::ops::Range;

/// Divides a chain into exactly `parts` consecutive ranges, none empty, whose largest sum is the least possible.
///
/// Of several such divisions, the one with the least sum of squares of the parts' sums (the most even), then of their
/// lengths, then the one whose last parts are longest. Needs `1 <= parts <= costs.len()`, and a sum below 2⁶².
pub(crate) fn least_largest(costs: &[u64], parts: usize) -> Vec<Range<usize>> {
    assert!((1..=costs.len()).contains(&parts), "{} segments, {parts} parts: the caller checks", costs.len());
    most_even(costs, parts, least_bound(costs, parts))
}

/// The least bound under which `parts` ranges hold the chain.
///
/// Fewer ranges than `parts` will do: with enough segments, one of them can always be cut again, and no sum grows.
fn least_bound(costs: &[u64], parts: usize) -> u64 {
    let mut low = costs.iter().copied().max().unwrap_or(0);
    let mut high = costs.iter().sum();
    while low < high {
        let middle = low + (high - low) / 2;
        if ranges_under(costs, middle) <= parts { high = middle } else { low = middle + 1 }
    }
    low
}

/// How many ranges the chain needs where none may exceed `bound`, which no single segment does.
fn ranges_under(costs: &[u64], bound: u64) -> usize {
    let (mut ranges, mut held) = (1, 0);
    for cost in costs {
        if held + cost > bound {
            (ranges, held) = (ranges + 1, 0);
        }
        held += cost;
    }
    ranges
}

/// How uneven a division is: squares of sums, then squares of lengths.
type Unevenness = (u128, usize);

/// Under the bound, the most even division.
///
/// `best[end]` after p rounds is the most even division of the first `end` segments into p ranges, and `cuts[p][end]`
/// where its last range begins.
fn most_even(costs: &[u64], parts: usize, bound: u64) -> Vec<Range<usize>> {
    let mut best: Vec<Option<Unevenness>> = vec![None; costs.len() + 1];
    best[0] = Some((0, 0));
    let mut cuts = Vec::with_capacity(parts);
    for _ in 0..parts {
        let (next, cut) = (0..best.len()).map(|end| last_range(costs, &best, end, bound)).unzip();
        best = next;
        cuts.push(cut);
    }
    walk_back(&cuts, costs.len())
}

/// The most even way to end at `end` with one more range, and where that range begins.
fn last_range(costs: &[u64], best: &[Option<Unevenness>], end: usize, bound: u64) -> (Option<Unevenness>, usize) {
    let (mut found, mut cut, mut sum) = (None, 0, 0);
    for start in (0..end).rev() {
        sum += costs[start];
        if sum > bound {
            break;
        }
        let Some((sums, lengths)) = best[start] else { continue };
        let uneven = (sums + u128::from(sum) * u128::from(sum), lengths + (end - start) * (end - start));
        // Of equals the earliest start, which the loop meets last.
        if found.is_none_or(|least| uneven <= least) {
            (found, cut) = (Some(uneven), start);
        }
    }
    (found, cut)
}

fn walk_back(cuts: &[Vec<usize>], segments: usize) -> Vec<Range<usize>> {
    let mut end = segments;
    let mut ranges: Vec<Range<usize>> = cuts
        .iter()
        .rev()
        .map(|cut| {
            let range = cut[end]..end;
            end = range.start;
            range
        })
        .collect();
    ranges.reverse();
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(costs: &[u64], parts: usize) -> Vec<usize> {
        least_largest(costs, parts).iter().map(|range| range.len()).collect()
    }

    #[test]
    fn the_largest_part_is_least() {
        assert_eq!(sizes(&[1, 7, 4, 3, 1, 11], 3), [2, 3, 1]);
        assert_eq!(sizes(&[300, 200, 100, 50, 25, 12], 3), [1, 1, 4]);
        // 10, 11, 15; EPL's 15, 13, 8 has the same largest and is less even.
        assert_eq!(sizes(&[1, 2, 3, 4, 5, 6, 7, 8], 3), [4, 2, 2]);
    }

    #[test]
    fn a_larger_part_is_not_taken_for_evenness() {
        // Squares of 1, 6, 6, 3 sum to 82, those of 7, 2, 4, 3 to 78.
        assert_eq!(sizes(&[1, 6, 2, 4, 3], 4), [1, 1, 2, 1]);
    }

    #[test]
    fn ties_are_even_and_later_parts_longer() {
        assert_eq!(sizes(&[1; 10], 4), [2, 2, 3, 3]);
        // One segment dominates: the others are still divided evenly.
        assert_eq!(sizes(&[9, 1, 1, 1, 1], 3), [1, 2, 2]);
        // Nothing costs anything: by number.
        assert_eq!(sizes(&[0; 7], 3), [2, 2, 3]);
    }

    #[test]
    fn no_part_is_empty() {
        assert_eq!(sizes(&[1000, 1, 1], 3), [1, 1, 1]);
        assert_eq!(sizes(&[0, 0, 5], 2), [1, 2]);
    }
}
