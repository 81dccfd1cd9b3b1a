//! The least recomputation against every possible choice.

use std::ops::Range;

use epl_core::plan::recompute::{Budget, Recomputation, RecomputeError, SegmentMemory, epl_auto, least_recompute};
use proptest::prelude::*;

fn segment((activation_bytes, carry_bytes, cost): (u64, u64, u32)) -> SegmentMemory {
    SegmentMemory { activation_bytes, carry_bytes, forward_cost: f64::from(cost) }
}

/// Every choice: each segment is stored, begins a run, or goes on with one.
fn choices(segments: usize) -> Vec<Vec<Range<usize>>> {
    let mut all: Vec<Vec<Range<usize>>> = vec![vec![]];
    for at in 0..segments {
        let mut next = Vec::new();
        for runs in all {
            next.push([&runs[..], &[at..at + 1]].concat());
            if let Some((last, before)) = runs.split_last()
                && last.end == at
            {
                next.push([before, &[last.start..at + 1]].concat());
            }
            next.push(runs);
        }
        all = next;
    }
    all
}

/// Cost and peak of a choice, counted segment by segment.
fn measure(segments: &[SegmentMemory], runs: &[Range<usize>], in_flight: u64) -> (f64, u64) {
    let (mut cost, mut kept, mut largest) = (0.0, 0, 0);
    for (at, segment) in segments.iter().enumerate() {
        match runs.iter().find(|run| run.contains(&at)) {
            None => kept += segment.activation_bytes,
            Some(run) => {
                cost += segment.forward_cost;
                kept += if run.start == at { segment.carry_bytes } else { 0 };
                largest = largest.max(segments[run.clone()].iter().map(|one| one.activation_bytes).sum());
            }
        }
    }
    (cost, in_flight * kept + largest)
}

/// The least (cost, peak) within the budget; without one, the least peak of all.
fn oracle(segments: &[SegmentMemory], budget: Budget) -> Result<(f64, u64), u64> {
    let measured = choices(segments.len()).into_iter().map(|runs| measure(segments, &runs, budget.in_flight));
    let all: Vec<(f64, u64)> = measured.collect();
    let fitting = all.iter().copied().filter(|(_, peak)| *peak <= budget.bytes);
    let least = fitting.min_by(|one, other| one.partial_cmp(other).expect("no cost is NaN"));
    least.ok_or_else(|| all.iter().map(|(_, peak)| *peak).min().expect("a choice"))
}

fn ours(segments: &[SegmentMemory], budget: Budget) -> Result<(f64, u64), u64> {
    match least_recompute(segments, budget) {
        Ok(choice) => {
            let (cost, peak) = measure(segments, choice.runs(), budget.in_flight);
            // What the choice tells of itself is what was counted.
            assert_eq!((cost, peak), (choice.recomputed_cost(segments), choice.peak_bytes(segments, budget.in_flight)));
            Ok((cost, peak))
        }
        Err(RecomputeError::BudgetTooSmall { needed, .. }) => Err(needed),
        Err(error) => panic!("{error}"),
    }
}

/// Equal blocks: 10 bytes of activations, 1 of carry, 1 of cost.
fn blocks(count: usize) -> Vec<SegmentMemory> {
    vec![segment((10, 1, 1)); count]
}

#[test]
fn every_choice_is_listed_once() {
    // Stored or a new run always; a longer run after a run: 1, 2, 5, 13, 34 choices.
    let counts: Vec<usize> = (0..5).map(|segments| choices(segments).len()).collect();
    assert_eq!(counts, [1, 2, 5, 13, 34]);
}

#[test]
fn a_wide_budget_recomputes_nothing() {
    let choice = least_recompute(&blocks(4), Budget::new(40)).unwrap();
    assert_eq!(choice, Recomputation::default());
    assert_eq!(choice.peak_bytes(&blocks(4), 1), 40);
}

#[test]
fn a_budget_is_spent_on_stored_segments() {
    // 39 bytes: no run of one block helps below 4 × 10 but two do: 2 × 10 stored, 2 carries, 10 for the run: 32.
    let choice = least_recompute(&blocks(4), Budget::new(39)).unwrap();
    assert_eq!(choice.runs().len(), 2);
    assert_eq!((choice.recomputed_cost(&blocks(4)), choice.peak_bytes(&blocks(4), 1)), (2.0, 32));
    assert_eq!(choice.run_of(choice.runs()[0].start), Some(&choice.runs()[0]));
}

#[test]
fn the_smallest_budget_is_about_the_root() {
    // 16 blocks: each its own run keeps 16 carries and 10 bytes; two a run 8 and 20.
    let text = least_recompute(&blocks(16), Budget::new(25)).unwrap_err().to_string();
    assert_eq!(
        text,
        "25 bytes are allowed, but with 1 micro-batches in flight the smallest choice stores 26; \
         allow 26 bytes, or use smaller micro-batches, more stages, or segments cut smaller"
    );
    assert_eq!(least_recompute(&blocks(16), Budget::new(26)).unwrap().runs().len(), 16);
    // Carries as large as a third of the activations: four runs of four would be 4 × 3 + 40; two of two less.
    let wide = vec![segment((10, 3, 1)); 16];
    assert_eq!(ours(&wide, Budget::new(0)), Err(44));
}

#[test]
fn more_micro_batches_in_flight_keep_less_each() {
    let budget = Budget::new(100);
    assert_eq!(ours(&blocks(8), budget), Ok((0.0, 80)));
    // Four in flight: one block stored and seven in four runs of at most two: 4 × (10 + 4) + 20. Two would be 96 + 20.
    assert_eq!(ours(&blocks(8), budget.with_in_flight(4)), Ok((7.0, 76)));
}

#[test]
fn cheap_segments_with_many_bytes_are_recomputed_first() {
    // An attention that stores much and costs little, between projections.
    let chain: Vec<_> = [(4, 1, 10), (90, 1, 1), (4, 1, 10), (90, 1, 1)].map(segment).to_vec();
    let choice = least_recompute(&chain, Budget::new(100)).unwrap();
    assert_eq!(choice.runs(), [1..2, 3..4]);
}

#[test]
fn the_automatic_rule_of_epl_is_never_cheaper() {
    let chain: Vec<_> = (0..9).map(|at| segment((10 + at, 2, 1 + at as u32 % 3))).collect();
    let auto = epl_auto(&chain, &(0..9).collect::<Vec<_>>()).unwrap();
    let least = least_recompute(&chain, Budget::new(auto.peak_bytes(&chain, 1))).unwrap();
    assert!(least.recomputed_cost(&chain) < auto.recomputed_cost(&chain));
}

#[test]
fn wrong_measures_are_errors() {
    let fault = |chain: &[SegmentMemory], budget| least_recompute(chain, budget).unwrap_err();
    assert_eq!(fault(&[], Budget::new(1)), RecomputeError::NoSegment);
    assert_eq!(fault(&blocks(1), Budget::new(1).with_in_flight(0)), RecomputeError::NoneInFlight);
    let dear = SegmentMemory { forward_cost: f64::NAN, ..blocks(1)[0] };
    assert!(fault(&[dear], Budget::new(1)).to_string().starts_with("segment 0 costs NaN"));
    let large = segment((u64::MAX / 2, 1, 1));
    assert!(matches!(fault(&[large], Budget::new(1)), RecomputeError::TooManyBytes { in_flight: 1, segments: 1 }));
}

/// A chain of 64 whose measures all differ, without any order.
fn ragged(segments: u64) -> Vec<SegmentMemory> {
    let draw =
        |at: u64, of: u64| (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29 + of as u32 * 13) % 1_000_003;
    (0..segments).map(|at| segment((1_000_000 + draw(at, 0), 50_000 + draw(at, 1) / 10, draw(at, 2) as u32))).collect()
}

#[test]
fn sixty_four_segments_that_all_differ_are_solved() {
    let chain = ragged(64);
    let all: u64 = chain.iter().map(|segment| segment.activation_bytes).sum();
    let mut before = f64::INFINITY;
    for percent in [20, 50, 80] {
        let budget = Budget::new(all / 100 * percent);
        let (cost, peak) = ours(&chain, budget).unwrap();
        assert!(peak <= budget.bytes);
        assert!(cost < before, "a wider budget recomputes less: {cost} after {before}");
        before = cost;
    }
}

#[test]
fn too_many_equal_choices_are_an_error_that_rounding_mends() {
    // Costs in proportion to bytes, none alike: every choice of about the right bytes is about as good.
    let mut chain = ragged(64);
    chain.iter_mut().for_each(|one| (one.carry_bytes, one.forward_cost) = (50_000, one.activation_bytes as f64));
    let all: u64 = chain.iter().map(|segment| segment.activation_bytes).sum();
    let budget = Budget::new(2 * all).with_in_flight(4);
    let error = least_recompute(&chain, budget).unwrap_err();
    assert!(matches!(error, RecomputeError::TooManyChoices { segments: 64, .. }), "{error}");

    for segment in &mut chain {
        segment.activation_bytes = segment.activation_bytes.next_multiple_of(50_000);
        segment.forward_cost = segment.activation_bytes as f64;
    }
    assert!(ours(&chain, budget).unwrap().1 <= budget.bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_choice_is_better(
        measures in prop::collection::vec((0..30_u64, 0..8_u64, 0..6_u32), 1..8),
        share in 0..110_u64,
        in_flight in 1..4_u64,
    ) {
        let chain: Vec<SegmentMemory> = measures.into_iter().map(segment).collect();
        let all: u64 = chain.iter().map(|segment| segment.activation_bytes).sum();
        let budget = Budget::new(all * in_flight * share / 100).with_in_flight(in_flight);
        prop_assert_eq!(ours(&chain, budget), oracle(&chain, budget));
    }
}
