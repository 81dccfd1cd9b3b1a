//! Automatic stages against every possible division.

use std::ops::Range;

use epl_core::schedule::partition::{custom_stage_ids, layer_stage, parts_of, stages_of};
use proptest::prelude::*;

/// Every division of `segments` into `parts` consecutive ranges, none empty.
fn divisions(segments: usize, parts: usize) -> Vec<Vec<Range<usize>>> {
    fn from(start: usize, end: usize, parts: usize) -> Vec<Vec<Range<usize>>> {
        if parts == 1 {
            return vec![vec![start..end]];
        }
        let firsts = start + 1..=end - (parts - 1);
        let with = |cut: usize| {
            from(cut, end, parts - 1).into_iter().map(move |rest| std::iter::once(start..cut).chain(rest).collect())
        };
        firsts.flat_map(with).collect()
    }
    from(0, segments, parts)
}

/// Largest sum, then squares of sums, then squares of lengths: less is better.
fn quality(costs: &[u64], parts: &[Range<usize>]) -> (u64, u64, usize) {
    let sums: Vec<u64> = parts.iter().map(|part| costs[part.clone()].iter().sum()).collect();
    let squares = sums.iter().map(|sum| sum * sum).sum();
    (*sums.iter().max().expect("a part"), squares, parts.iter().map(|part| part.len() * part.len()).sum())
}

/// Kinds that never repeat, so that costs decide.
fn distinct(segments: usize) -> Vec<usize> {
    (0..segments).collect()
}

fn sizes(ranges: &[Range<usize>]) -> Vec<usize> {
    ranges.iter().map(Range::len).collect()
}

#[test]
fn exactly_as_many_stages_as_asked() {
    // EPL's partition_balance gives three parts for four and for five stages.
    for stages in 1..=6 {
        assert_eq!(stages_of(&[1.0; 6], &[0; 6], stages).unwrap().len(), stages);
    }
}

#[test]
fn a_transformer_is_divided_by_its_blocks() {
    let kinds: Vec<char> = format!("e{}h", "b".repeat(12)).chars().collect();
    let costs: Vec<f64> = kinds.iter().map(|kind| if *kind == 'b' { 1.0 } else { 2.5 }).collect();
    let told = |stages| sizes(&stages_of(&costs, &kinds, stages).unwrap());
    assert_eq!(told(2), [7, 7]);
    assert_eq!(told(4), [4, 3, 3, 4]);
    assert_eq!(told(5), [3, 2, 3, 3, 3]);
    assert_eq!(told(12), [2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]);
    // More stages than blocks: by cost.
    assert_eq!(told(13), [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1]);
}

#[test]
fn measured_times_are_divided_like_whole_numbers() {
    // 0.1 + 0.2 and 0.3 differ as floating sums; the division must not hang on that.
    let tenths: Vec<f64> = [1, 2, 3, 1, 2, 3, 6].iter().map(|&cost| f64::from(cost) / 10.0).collect();
    assert_eq!(sizes(&stages_of(&tenths, &distinct(7), 3).unwrap()), [3, 3, 1]);
}

proptest! {
    #[test]
    fn no_division_is_better(costs in prop::collection::vec(0..20_u64, 1..10), share in 0..10_usize) {
        let parts = 1 + share % costs.len();
        let floats: Vec<f64> = costs.iter().map(|&cost| cost as f64).collect();
        let ours = stages_of(&floats, &distinct(costs.len()), parts).unwrap();
        let all = divisions(costs.len(), parts);
        prop_assert!(all.contains(&ours), "{:?} is no division", ours);
        let best = all.iter().map(|other| quality(&costs, other)).min().unwrap();
        prop_assert_eq!(quality(&costs, &ours), best);
    }

    #[test]
    fn blocks_differ_by_one_and_ends_have_no_more(
        before in 0..3_usize,
        more in 0..12_usize,
        behind in 0..3_usize,
        stages in 1..6_usize,
        chunks in 1..4_usize,
    ) {
        // Enough for every part, and half the chain.
        let blocks = (stages * chunks + more).max(before + behind);
        let segments = before + blocks + behind;
        let kinds: Vec<usize> =
            (0..segments).map(|at| if (before..before + blocks).contains(&at) { 100 } else { at }).collect();
        let parts = parts_of(&vec![1.0; segments], &kinds, stages, chunks).unwrap();
        prop_assert_eq!(parts.len(), stages * chunks);
        let mut end = 0;
        let mut held = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            prop_assert_eq!(part.segments.start, end);
            prop_assert_eq!((part.stage, part.chunk), (index % stages, index / stages));
            end = part.segments.end;
            held.push(kinds[part.segments.clone()].iter().filter(|kind| **kind == 100).count());
        }
        prop_assert_eq!(end, segments);
        let (least, most) = (*held.iter().min().unwrap(), *held.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{:?}", held);
        if before > 0 && held.len() > 1 && held[0] > least {
            // The first part takes one more only where all the others have, or the last carries more.
            let others = &held[1..held.len() - 1];
            prop_assert!(others.iter().all(|blocks| *blocks == most), "{:?}", held);
        }
    }

    #[test]
    fn both_of_libais_ways_agree(more in 0..40_usize, stages in 1..9_usize) {
        let layers = stages + more;
        let ids: Vec<usize> = (0..layers).map(|layer| layer_stage(layer as isize, layers, stages).unwrap()).collect();
        let ranges = custom_stage_ids(&ids, stages).unwrap();
        let sizes = sizes(&ranges);
        prop_assert!(sizes.is_sorted() && sizes[stages - 1] - sizes[0] <= 1, "{:?}", sizes);
        prop_assert_eq!(layer_stage(-1, layers, stages).unwrap(), stages - 1);
    }
}
