//! The least recomputation that stays within a budget of bytes.
//!
//! Every bound ("cap") on the activations of a run is tried: the caps are the sums of all stretches of the chain. Under
//! a cap, what may be kept is known, and the cheapest choice that keeps no more is found exactly: a dynamic program
//! over the boundaries, whose labels are the choices of the segments before that no other beats in both bytes and cost.
//! Choosing is a knapsack, so labels could be many; a price for a kept byte ([`Price`]) tells which of them cannot end
//! in anything better than what is known.

mod chain;
mod price;
mod frontier;

use chain::CostChain;
use frontier::Frontier;
use price::{Bound, Price, tails};

use super::{Recomputation, RecomputeError, SegmentMemory};
use crate::schedule::partition::units;

/// Labels that may be made under one cap, which bounds the memory: about 200 MB.
const UNDER_A_CAP: usize = 1 << 22;
/// Labels that may be made in all, which bounds the time: some seconds.
const IN_ALL: usize = 1 << 26;

/// What may be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes at the peak.
    pub bytes: u64,
    /// Micro-batches between their forward and their backward at once: 1 without a pipeline.
    pub in_flight: u64,
}

impl Budget {
    /// For one micro-batch at a time.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, in_flight: 1 }
    }

    /// For a stage that holds several micro-batches.
    pub fn with_in_flight(self, in_flight: u64) -> Self {
        Self { in_flight, ..self }
    }

    /// What one micro-batch may keep beside a run of `cap` bytes.
    fn keep(&self, cap: u64) -> Option<u64> {
        self.bytes.checked_sub(cap).map(|rest| rest / self.in_flight)
    }
}

/// The choice with the least recomputed forward cost whose [peak](Recomputation::peak_bytes) is within the budget.
///
/// The peak is `in_flight` × (activations of segments that are not recomputed + the carry that enters each run) + the
/// activations of the largest run. Of choices that cost the same, one with the least peak. Exact; meant for chains up
/// to about 64 segments, since the time grows with the fourth power of their number.
///
/// ```
/// # use epl_core::plan::recompute::{Budget, SegmentMemory, least_recompute};
/// let blocks = [SegmentMemory { activation_bytes: 10, carry_bytes: 1, forward_cost: 1.0 }; 4];
/// assert!(least_recompute(&blocks, Budget::new(40))?.runs().is_empty()); // all are stored
/// let chosen = least_recompute(&blocks, Budget::new(39))?;
/// // Two are stored, two run again: 2 × 10 and 2 × 1, and 10 while one of them runs backward.
/// assert_eq!((chosen.recomputed_cost(&blocks), chosen.peak_bytes(&blocks, 1)), (2.0, 32));
/// let error = least_recompute(&blocks, Budget::new(13)).unwrap_err().to_string();
/// assert!(error.contains("allow 14 bytes"), "{error}");
/// # Ok::<_, epl_core::plan::recompute::RecomputeError>(())
/// ```
///
/// # Errors
///
/// No segment, a cost that is negative or not finite, no micro-batch in flight, bytes that do not fit a number, or a
/// budget below the least peak, which is then told. Also too many choices of almost equal merit: bytes and costs that
/// differ from segment to segment and are in proportion to each other, to the last digit.
pub fn least_recompute(segments: &[SegmentMemory], budget: Budget) -> Result<Recomputation, RecomputeError> {
    let chain = checked(segments, budget.in_flight)?;
    let caps = chain.caps();
    let under = |&cap: &u64| Bound::under(&chain, cap, budget.keep(cap)?);
    let bounds: Vec<Bound> = caps.iter().filter_map(under).collect();
    let Some(known) = bounds.iter().map(|bound| bound.known).min() else {
        let needed = least_peak(&chain, &caps, budget.in_flight);
        return Err(RecomputeError::BudgetTooSmall { budget: budget.bytes, in_flight: budget.in_flight, needed });
    };
    let peak = |choice: &Recomputation| choice.peak_bytes(segments, budget.in_flight);
    cheapest(&chain, bounds, known, peak)
}

/// The best choice under any of the bounds, the most promising first: the others are then soon seen to be dearer.
fn cheapest(
    chain: &CostChain,
    mut bounds: Vec<Bound>,
    known: u64,
    peak: impl Fn(&Recomputation) -> u64,
) -> Result<Recomputation, RecomputeError> {
    bounds.sort_by_key(|bound| (bound.floor(), bound.cap));
    let (mut least, mut room) = (known, IN_ALL);
    let mut best: Option<((u64, u64), Recomputation)> = None;
    for bound in bounds.iter().take_while(|bound| bound.floor() <= known) {
        let most = room.min(UNDER_A_CAP);
        let Some(frontier) = Frontier::of(chain, bound, least, most) else {
            return Err(RecomputeError::TooManyChoices { segments: chain.len(), most });
        };
        room -= frontier.made();
        let Some((cost, runs)) = frontier.cheapest() else { continue };
        let choice = Recomputation::new(runs);
        // It may cost more than is known: a bound weighs bytes that were saved against cost.
        let merit = (cost, peak(&choice));
        least = least.min(cost);
        if best.as_ref().is_none_or(|(other, _)| merit < *other) {
            best = Some((merit, choice));
        }
    }
    let (_, choice) = best.expect("the bound whose choice is known to cost the least allows that choice");
    Ok(choice)
}

/// The chain in whole numbers, none of which any choice can exceed.
fn checked(segments: &[SegmentMemory], in_flight: u64) -> Result<CostChain, RecomputeError> {
    if segments.is_empty() {
        return Err(RecomputeError::NoSegment);
    }
    if in_flight == 0 {
        return Err(RecomputeError::NoneInFlight);
    }
    let costs: Vec<f64> = segments.iter().map(|segment| segment.forward_cost).collect();
    let costs = units(&costs)?;
    let all: u128 = segments.iter().map(|one| u128::from(one.activation_bytes) + u128::from(one.carry_bytes)).sum();
    // What all micro-batches could keep, and a run of the whole chain besides.
    match all.checked_mul(u128::from(in_flight) + 1) {
        Some(most) if most <= u128::from(u64::MAX) => Ok(CostChain::new(segments, costs)),
        _ => Err(RecomputeError::TooManyBytes { in_flight, segments: segments.len() }),
    }
}

/// The least peak of all choices.
fn least_peak(chain: &CostChain, caps: &[u64], in_flight: u64) -> u64 {
    let peak = |&cap: &u64| in_flight * tails(chain, cap, Price::BYTES)[0].kept + cap;
    caps.iter().map(peak).min().unwrap_or(0)
}
