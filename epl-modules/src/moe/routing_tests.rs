//! Literal small cases of the routing decision.

use super::*;

const SWITCH: Rules = Rules { experts: 3, gate: Gate::Switch, capacity: Capacity::Unlimited, training: true };
const TOP2: Rules = Rules { gate: Gate::Top2, ..SWITCH };

/// (expert, token) of every assignment.
fn assigned(routing: &Routing) -> Vec<(usize, usize)> {
    routing.assignments.iter().map(|a| (a.expert, a.token)).collect()
}

fn asked(routing: &Routing) -> Vec<Vec<usize>> {
    routing.groups.iter().map(|group| group.asked.clone()).collect()
}

#[rustfmt::skip]
const FOUR: [f64; 12] = [
    0.2, 0.7, 0.1,
    0.6, 0.3, 0.1,
    0.1, 0.8, 0.1,
    0.1, 0.2, 0.7,
];

#[test]
fn switch_takes_the_most_probable() {
    let routing = route(&FOUR, &TokenMask::all(1, 4), &SWITCH);
    assert_eq!(assigned(&routing), [(0, 1), (1, 0), (1, 2), (2, 3)]);
    assert_eq!(routing.counts(3), [1, 2, 1]);
    assert_eq!(asked(&routing), [[1, 2, 1]]);
    assert_eq!(routing.dropped, 0);
}

#[test]
fn switch_drops_the_later_tokens_of_a_full_expert() {
    let rules = Rules { capacity: Capacity::Fixed(1), ..SWITCH };
    let routing = route(&FOUR, &TokenMask::all(1, 4), &rules);
    assert_eq!(assigned(&routing), [(0, 1), (1, 0), (2, 3)]);
    assert_eq!(asked(&routing), [[1, 2, 1]], "the density counts dropped tokens too");
    assert_eq!(routing.dropped, 1);
}

#[test]
fn a_group_has_a_capacity_of_its_own() {
    let rules = Rules { capacity: Capacity::Fixed(1), ..SWITCH };
    let routing = route(&FOUR, &TokenMask::all(2, 2), &rules);
    assert_eq!(assigned(&routing), [(0, 1), (1, 0), (1, 2), (2, 3)]);
    assert_eq!(asked(&routing), [[1, 1, 0], [0, 1, 1]]);
    assert_eq!(routing.dropped, 0);
}

#[test]
fn of_equals_the_lower_expert_wins() {
    let equal = [1.0 / 3.0; 6];
    let routing = route(&equal, &TokenMask::all(1, 2), &SWITCH);
    assert_eq!(assigned(&routing), [(0, 0), (0, 1)]);
    let routing = route(&equal, &TokenMask::all(1, 2), &TOP2);
    assert_eq!(assigned(&routing), [(0, 0), (0, 1), (1, 0), (1, 1)]);
}

#[test]
fn what_is_not_a_number_does_not_stop_the_run() {
    let nan = f64::NAN;
    let rows = [nan, 0.2, 0.8, nan, nan, nan, 0.5, nan, 0.1];
    let routing = route(&rows, &TokenMask::all(1, 3), &TOP2);
    assert_eq!(routing.counts(3), [2, 2, 2]);
    assert_eq!(asked(&routing), [[2, 0, 1]]);
}

#[test]
fn top2_masks_the_first_expert() {
    let routing = route(&FOUR, &TokenMask::all(1, 4), &TOP2);
    #[rustfmt::skip]
    assert_eq!(assigned(&routing), [
        (0, 0), (0, 1), (0, 2),
        (1, 0), (1, 1), (1, 2), (1, 3),
        (2, 3),
    ]);
    assert_eq!(asked(&routing), [[1, 2, 1]], "the density counts first choices only");
}

#[test]
fn top2_places_all_first_choices_before_the_second_ones() {
    // The first token's second choice is expert 1, whose places go to the first choices of tokens 1 and 2.
    #[rustfmt::skip]
    let rows = [
        0.6, 0.3, 0.1,
        0.1, 0.8, 0.1,
        0.1, 0.7, 0.2,
    ];
    let rules = Rules { capacity: Capacity::Fixed(2), ..TOP2 };
    let routing = route(&rows, &TokenMask::all(1, 3), &rules);
    assert_eq!(assigned(&routing), [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)]);
    assert_eq!(routing.dropped, 1);
}

#[test]
fn top2_can_keep_a_second_choice_whose_first_was_dropped() {
    let rows = [0.7, 0.2, 0.1, 0.8, 0.1, 0.1, 0.6, 0.1, 0.3];
    let rules = Rules { capacity: Capacity::Fixed(1), ..TOP2 };
    let routing = route(&rows, &TokenMask::all(1, 3), &rules);
    assert_eq!(assigned(&routing), [(0, 0), (1, 0), (2, 2)]);
    assert_eq!(routing.dropped, 3, "token 1 lost both, token 2 the first");
}

#[test]
fn padding_is_not_routed_and_does_not_count() {
    let mask = TokenMask::from_lengths(&[1, 0], 2);
    let routing = route(&FOUR, &mask, &SWITCH);
    assert_eq!(assigned(&routing), [(1, 0)]);
    assert_eq!(routing.groups[0], Group { tokens: 1, asked: vec![0, 1, 0] });
    assert_eq!(routing.groups[1], Group { tokens: 0, asked: vec![0, 0, 0] }, "a group of padding alone");
}

#[test]
fn capacity_counts_real_tokens_only() {
    // 8 real tokens over 2 experts, factor 1: capacity 4, whatever the padded length.
    let rules = Rules { experts: 2, capacity: Capacity::Factor { train: 1.0, eval: 2.0 }, ..SWITCH };
    for length in [8, 20] {
        let rows: Vec<f64> = (0..length).flat_map(|_| [0.9, 0.1]).collect();
        let mask = TokenMask::from_lengths(&[8], length);
        let routing = route(&rows, &mask, &rules);
        assert_eq!(routing.counts(2), [4, 0]);
        assert_eq!(routing.dropped, 4);
        assert_eq!(route(&rows, &mask, &Rules { training: false, ..rules }).dropped, 0);
    }
}

#[test]
fn all_tokens_to_one_expert() {
    let rows: Vec<f64> = (0..5).flat_map(|_| [0.0, 0.0, 1.0]).collect();
    let routing = route(&rows, &TokenMask::all(1, 5), &SWITCH);
    assert_eq!(routing.counts(3), [0, 0, 5]);
    assert!(assigned(&routing).is_sorted());
}

#[test]
fn no_tokens_at_all() {
    for mask in [TokenMask::all(0, 4), TokenMask::all(3, 0), TokenMask::from_lengths(&[0, 0], 0)] {
        let routing = route(&[], &mask, &TOP2);
        assert!(routing.assignments.is_empty());
        assert_eq!(routing.counts(3), [0, 0, 0]);
    }
}

/// The promise of groups: what happens to a sequence depends on nothing beside it.
#[test]
fn dropping_does_not_depend_on_the_cut_of_the_batch_or_the_padding() {
    let (experts, lengths) = (4, [9usize, 3, 12, 7, 1]);
    // Skewed towards the low experts, so that they overflow.
    let probability = |sample: usize, token: usize, expert: usize| {
        let noise = ((sample * 31 + token * 7 + expert * 13) * 2_654_435_761 % 1000) as f64 / 1000.0;
        noise + 1.0 / (1 + expert) as f64
    };
    for gate in [Gate::Switch, Gate::Top2, Gate::TopK { experts: 3, renormalise: true }] {
        let rules = Rules { experts, gate, capacity: Capacity::Fixed(2), training: true };
        // (sample, token inside the sample, expert), for some cut and padding.
        let granted = |samples: core::ops::Range<usize>, length: usize| {
            let rows: Vec<f64> = samples
                .clone()
                .flat_map(|sample| (0..length).map(move |token| (sample, token)))
                .flat_map(|(sample, token)| (0..experts).map(move |expert| probability(sample, token, expert)))
                .collect();
            let routing = route(&rows, &TokenMask::from_lengths(&lengths[samples.clone()], length), &rules);
            let name = |a: &Assignment| (samples.start + a.token / length, a.token % length, a.expert);
            (routing.assignments.iter().map(name).collect::<Vec<_>>(), routing.dropped)
        };
        let sorted = |mut all: Vec<_>| {
            all.sort_unstable();
            all
        };
        let (whole, dropped) = granted(0..5, 12);
        assert!(dropped > 0, "the case must drop something");
        for cuts in [vec![0..2, 2..5], vec![0..1, 1..2, 2..3, 3..4, 4..5]] {
            for length in [12, 17] {
                let parts: Vec<_> = cuts.iter().map(|cut| granted(cut.clone(), length)).collect();
                let joined = parts.iter().flat_map(|(granted, _)| granted.clone()).collect();
                assert_eq!(sorted(joined), sorted(whole.clone()));
                assert_eq!(parts.iter().map(|(_, dropped)| dropped).sum::<usize>(), dropped);
            }
        }
    }
}
