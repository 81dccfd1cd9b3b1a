//! Layouts next to one: one thing is other.

use super::candidate::{Candidate, Level};
use super::column::SegmentCost;
use super::draft::runs_all;
use crate::config::Config;

/// As many cuts, or segments that are run again, are moved one by one; of more, those of the part that takes longest alone, and none.
const FEW: usize = 12;

/// The layouts next to one, of segments that take so long, and stages so many times as long, where these levels are allowed by what is
/// given.
pub(super) fn neighbours(
    candidate: &Candidate,
    costs: (&[SegmentCost], &[f64]),
    (given, levels): (&Config, &[Level]),
) -> Vec<Candidate> {
    let own = candidate.level;
    let is_like = |level: Level| runs_all(given, level) || !runs_all(given, own);
    let levelled = levels.iter().filter(|level| **level != own && is_like(**level)).map(|level| {
        let runs = if runs_all(given, *level) { Vec::new() } else { candidate.runs.clone() };
        Candidate { level: *level, runs, ..candidate.clone() }
    });
    let first = moved(candidate, costs, &[1, 2]).into_iter().chain(stored(candidate)).chain(levelled);
    // More cuts at once seldom help where fewer do not.
    first.chain(moved(candidate, costs, &[3])).collect()
}

/// With so many neighbouring cuts moved by a segment.
fn moved(candidate: &Candidate, costs: (&[SegmentCost], &[f64]), counts: &[usize]) -> Vec<Candidate> {
    let cuts = &candidate.cuts;
    let indices = if cuts.len() <= FEW { 0..cuts.len() } else { around_slowest(cuts, costs) };
    let moved = |index: usize, count: usize, by: isize| {
        let mut cuts = cuts.clone();
        for cut in cuts.get_mut(index..index + count)? {
            *cut = cut.checked_add_signed(by)?;
        }
        let ends = [&[0], &cuts[..], &[costs.0.len()]].concat();
        ends.windows(2).all(|pair| pair[0] < pair[1]).then_some(Candidate { cuts, ..candidate.clone() })
    };
    let ways = || counts.iter().flat_map(|count| [(*count, -1), (*count, 1)]);
    indices.flat_map(|index| ways().filter_map(move |(count, by)| moved(index, count, by))).collect()
}

/// The numbers of the cuts before and behind the part that takes longest.
fn around_slowest(cuts: &[usize], (costs, slowness): (&[SegmentCost], &[f64])) -> std::ops::Range<usize> {
    let ends = [&[0], cuts, &[costs.len()]].concat();
    let seconds = |part: usize| {
        let own = &costs[ends[part]..ends[part + 1]];
        slowness[part % slowness.len()] * own.iter().map(SegmentCost::seconds).sum::<f64>()
    };
    let slowest = (0..=cuts.len()).max_by(|one, other| seconds(*one).total_cmp(&seconds(*other))).unwrap_or(0);
    slowest.saturating_sub(1)..(slowest + 1).min(cuts.len())
}

/// With one segment stored that is run again.
fn stored(candidate: &Candidate) -> Vec<Candidate> {
    let runs = &candidate.runs;
    let without = |index: usize| {
        let mut runs = runs.clone();
        runs.remove(index);
        Candidate { runs, ..candidate.clone() }
    };
    (0..runs.len()).filter(|_| runs.len() <= FEW).map(without).collect()
}
