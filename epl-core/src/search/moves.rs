//! Layouts next to one: one thing is other.

use super::candidate::Candidate;
use super::column::SegmentCost;
use super::draft::runs_all;
use crate::config::{OffloadLevel, ZeroLevel};

/// As many cuts, or segments that are run again, are moved one by one; of more, those of the part that takes longest alone, and none.
const FEW: usize = 12;

/// The layouts next to one, of segments that take so long, where these levels are allowed.
pub(super) fn neighbours(
    candidate: &Candidate,
    costs: &[SegmentCost],
    levels: &[(ZeroLevel, OffloadLevel)],
) -> Vec<Candidate> {
    let own = (candidate.zero, candidate.offload);
    let is_like = |level: (ZeroLevel, OffloadLevel)| level.1 == own.1 && (runs_all(level) || !runs_all(own));
    let other = |level: &&(ZeroLevel, OffloadLevel)| **level != own && is_like(**level);
    let levelled = levels.iter().filter(other).map(|(zero, offload)| {
        let runs = if runs_all((*zero, *offload)) { Vec::new() } else { candidate.runs.clone() };
        Candidate { zero: *zero, runs, ..candidate.clone() }
    });
    moved(candidate, costs).into_iter().chain(stored(candidate)).chain(levelled).collect()
}

/// With one cut moved by a segment.
fn moved(candidate: &Candidate, costs: &[SegmentCost]) -> Vec<Candidate> {
    let cuts = &candidate.cuts;
    let indices = if cuts.len() <= FEW { 0..cuts.len() } else { around_slowest(cuts, costs) };
    let moved = |index: usize, by: isize| {
        let mut cuts = cuts.clone();
        cuts[index] = cuts[index].checked_add_signed(by)?;
        let ends = [&[0], &cuts[..], &[costs.len()]].concat();
        ends.windows(2).all(|pair| pair[0] < pair[1]).then_some(Candidate { cuts, ..candidate.clone() })
    };
    indices.flat_map(|index| [-1, 1].into_iter().filter_map(move |by| moved(index, by))).collect()
}

/// The numbers of the cuts before and behind the part that takes longest.
fn around_slowest(cuts: &[usize], costs: &[SegmentCost]) -> std::ops::Range<usize> {
    let ends = [&[0], cuts, &[costs.len()]].concat();
    let seconds = |part: usize| costs[ends[part]..ends[part + 1]].iter().map(SegmentCost::seconds).sum::<f64>();
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
