//! Indices on the device against the lists of the host.

use burn::tensor::DType;

use super::*;
use crate::moe::{Capacity, Routed, listed, route};

fn values(tensor: Tensor<1, Int>) -> Vec<usize> {
    tensor.into_data().iter::<i64>().map(|value| usize::try_from(value).expect("an index")).collect()
}

/// Each token's experts as a list of the host has them: (token, expert), sorted.
fn taken(slots: &Slots) -> Vec<(usize, usize)> {
    let of_choice = |choice: &Choice| {
        let is_taken: Vec<bool> = choice.is_taken.clone().into_data().iter().collect();
        let experts = values(choice.expert.clone().flatten(0, 1)).into_iter().enumerate().zip(is_taken);
        experts.filter_map(|(one, is_taken)| is_taken.then_some(one)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = slots.choices.iter().flat_map(of_choice).collect();
    all.sort_unstable();
    all
}

/// The rows of every expert hold its tokens, and each row says so from both sides.
fn check_rows(slots: &Slots) {
    let (tokens, of_rows) = (slots.mask.as_slice().len(), values(slots.tokens.clone()));
    assert_eq!(of_rows.len(), slots.counts.iter().sum::<usize>());
    let mut held = vec![0; of_rows.len()];
    for choice in &slots.choices {
        let (experts, own) = (values(choice.expert.clone().flatten(0, 1)), values(choice.tokens.clone()));
        let is_taken: Vec<bool> = choice.is_taken.clone().into_data().iter().collect();
        for (token, row) in values(choice.rows.clone()).into_iter().enumerate() {
            match is_taken[token] {
                true => {
                    let first: usize = slots.counts[..experts[token]].iter().sum();
                    assert!((first..first + slots.counts[experts[token]]).contains(&row), "row {row} of token {token}");
                    assert_eq!((of_rows[row], own[row]), (token, token));
                    held[row] += 1;
                }
                false => assert_eq!(row, of_rows.len(), "a token without a place"),
            }
        }
    }
    for (row, token) in of_rows.iter().enumerate() {
        assert_eq!(held[row], usize::from(*token < tokens), "row {row}");
    }
}

/// Probabilities without a pattern, with equal ones and some that are no numbers.
fn probabilities(tokens: usize, experts: usize, seed: usize) -> Vec<f64> {
    let value = |index: usize| {
        let mixed = ((seed * 31 + index) as f64 * 12.9898).sin() * 43_758.545_3;
        match (mixed.rem_euclid(1.0) * 8.0).floor() / 8.0 {
            quantised if (index + seed).is_multiple_of(37) && seed.is_multiple_of(3) => quantised * f64::NAN,
            quantised => quantised,
        }
    };
    (0..tokens * experts).map(value).collect()
}

#[test]
fn a_device_decides_as_the_host_does() {
    let device = Device::default();
    let capacities = [
        Capacity::Fixed(1),
        Capacity::Fixed(3),
        Capacity::Factor { train: 1.25, eval: 2.0 },
        Capacity::Factor { train: 0.3, eval: 0.5 },
        Capacity::Unlimited,
    ];
    let lengths = [vec![5, 3, 0, 7], vec![7], vec![0, 0], vec![1, 1, 1], vec![7, 7, 7], vec![150, 90]];
    let mut seed = 0;
    for gate in [Gate::Switch, Gate::Top2, Gate::TopK { experts: 2, renormalise: false }] {
        for (capacity, experts) in capacities.iter().flat_map(|capacity| [2, 3, 5].map(|experts| (*capacity, experts)))
        {
            for lengths in &lengths {
                seed += 1;
                let rules = Rules { experts, gate, capacity, training: seed % 2 == 0 };
                let mask = TokenMask::from_lengths(lengths, lengths[0].max(7));
                let tokens = mask.as_slice().len();
                let probabilities = probabilities(tokens, experts, seed);
                let routing = route(&probabilities, &mask, &rules);
                let data = TensorData::new(probabilities, [tokens, experts]);
                let (slots, tally) = Slots::new(Tensor::from_data(data, (&device, DType::F64)), mask, &rules);
                let mut expected: Vec<_> = routing.assignments.iter().map(|a| (a.token, a.expert)).collect();
                expected.sort_unstable();
                assert_eq!(taken(&slots), expected, "{rules:?} {lengths:?}");
                check_rows(&slots);
                let counts: Vec<usize> = tally.taken.into_data().iter::<f64>().map(|count| count as usize).collect();
                assert_eq!(counts, routing.counts(experts));
                assert_eq!(tally.dropped.into_data().iter::<f64>().collect::<Vec<_>>(), [routing.dropped as f64]);
                let factors: Vec<f64> = slots.auxiliary.clone().into_data().iter().collect();
                let asked = |asked: Tensor<1>| asked.into_data().iter::<f64>().collect::<Vec<_>>();
                let there = Tensor::<2>::zeros([tokens, experts], (&device, DType::F64));
                assert_eq!(asked(slots.asked.clone()), asked(balance::asked(&routing, &there)));
                for (ours, exact) in factors.iter().zip(balance::auxiliary_factors(&routing, experts)) {
                    assert!((ours - exact).abs() < 1e-12, "{ours} {exact}");
                }
                let listed = Slots::listed(&routing, gate, &there);
                assert_eq!((taken(&listed), &listed.counts), (expected, &routing.counts(experts)));
                check_rows(&listed);
            }
        }
    }
}

/// What comes of rows that are doubled on their way, and the gradients of the tokens and the probabilities.
fn through(
    x: &Tensor<2>,
    probabilities: &Tensor<2>,
    f: impl FnOnce(Tensor<2>, Tensor<2>) -> Tensor<2>,
) -> [Vec<f64>; 3] {
    let [x, probabilities] = [x, probabilities].map(|tensor| tensor.clone().detach().require_grad());
    let y = f(x.clone(), probabilities.clone());
    // A seed that differs from element to element.
    let seed = Tensor::arange(1..y.shape().num_elements() as i64 + 1, &y.device().without_autodiff()).float();
    let grads = (y.clone() * Tensor::from_inner(seed.cast(y.dtype()).reshape(y.shape()))).sum().backward();
    let values = |tensor: Option<Tensor<2>>| tensor.map_or_else(Vec::new, |tensor| tensor.into_data().iter().collect());
    [values(Some(y.inner())), values(x.grad(&grads)), values(probabilities.grad(&grads))]
}

#[test]
fn rows_and_their_gradients_are_those_of_the_lists() {
    let (host, device) = (Device::flex().autodiff(), Device::default().autodiff());
    for (seed, (gate, capacity, experts)) in [
        (Gate::Switch, Capacity::Fixed(2), 3),
        (Gate::Top2, Capacity::Fixed(2), 3),
        (Gate::Top2, Capacity::Unlimited, 4),
        // Nobody keeps both.
        (Gate::Top2, Capacity::Fixed(1), 2),
        (Gate::TopK { experts: 3, renormalise: true }, Capacity::Fixed(3), 5),
        (Gate::TopK { experts: 3, renormalise: false }, Capacity::Unlimited, 4),
    ]
    .into_iter()
    .enumerate()
    {
        let rules = Rules { experts, gate, capacity, training: true };
        let mask = TokenMask::from_lengths(if experts == 2 { &[2, 2] } else { &[5, 0, 7] }, 7);
        let tokens = mask.as_slice().len();
        let value = |index: usize| 0.1 + ((seed * 17 + index) as f64 * 12.9898).sin().abs();
        let mut numbers: Vec<f64> = (0..tokens * experts).map(value).collect();
        if experts == 2 {
            // The tokens of a group ask for different experts first.
            numbers.chunks_mut(2).enumerate().for_each(|(token, row)| row[token % 2] += 1.0);
        }
        if experts == 5 {
            // A sum of zero, and one that is too small to divide by.
            numbers.chunks_mut(5).take(2).enumerate().for_each(|(token, row)| row.fill(token as f64 * 1e-300));
        }
        let routing = route(&numbers, &mask, &rules);
        let of = |token: usize| routing.assignments.iter().filter(|one| one.token == token).count();
        assert_eq!((0..tokens).any(|token| of(token) > 1), gate.choices() > 1 && experts > 2);
        let x: Vec<f64> = (0..tokens * 3).map(|index| value(index + 1000)).collect();
        let (numbers, x) = (TensorData::new(numbers, [tokens, experts]), TensorData::new(x, [tokens, 3]));
        let on =
            |device: &Device| [&x, &numbers].map(|data| Tensor::<2>::from_data(data.clone(), (device, DType::F64)));
        let [of_host, probabilities] = on(&host);
        let expected = through(&of_host, &probabilities, |x, probabilities| {
            let routed = Routed { log_sum: probabilities.clone(), probabilities };
            let weights = listed::weights(&routed, &routing, gate);
            listed::combine(listed::rows_of(x, &routing) * 2.0, weights, &routing)
        });
        let [x, probabilities] = on(&device);
        let (decided, _) = Slots::new(probabilities.clone().inner(), mask, &rules);
        for slots in [decided, Slots::listed(&routing, gate, &probabilities)] {
            let there =
                through(&x, &probabilities, |x, probabilities| slots.combine(slots.rows_of(x) * 2.0, probabilities));
            for (ours, exact) in there.iter().flatten().zip(expected.iter().flatten()) {
                assert!((ours - exact).abs() < 1e-12 * (1.0 + exact.abs()), "{gate:?}, {capacity:?}: {ours} {exact}");
            }
            assert_eq!(there.map(|values| values.len()), expected.clone().map(|values| values.len()));
        }
    }
}

#[test]
fn in_16_bits_rows_stay_so_and_gradients_are_rounded_once() {
    let x = Tensor::<2>::ones([4, 1], (&Device::default().autodiff(), DType::BF16)).require_grad();
    let index = |values: Vec<usize>| numbers(values, &Device::default());
    // Row 0 is taken twice; the third row of the result is empty.
    let y = moved(x.clone(), index(vec![0, 0, 4]), vec![index(vec![0, 3, 3, 3]), index(vec![1, 3, 3, 3])]);
    assert_eq!(
        (y.dtype(), y.clone().into_data().iter::<f32>().collect::<Vec<_>>()),
        (DType::BF16, vec![1.0, 1.0, 0.0])
    );
    let grad = x.grad(&y.sum().backward()).expect("it takes part");
    assert_eq!(
        (grad.dtype(), grad.into_data().iter::<f32>().collect::<Vec<_>>()),
        (DType::BF16, vec![2.0, 0.0, 0.0, 0.0])
    );
}

#[test]
fn much_room_does_not_pay() {
    let pays = |experts: usize, capacity: Capacity, lengths: &[usize]| {
        let rules = Rules { experts, gate: Gate::Switch, capacity, training: true };
        Slots::pay(&TokenMask::from_lengths(lengths, 64), &rules)
    };
    let usual = Capacity::Factor { train: 1.25, eval: 2.0 };
    assert!(pays(8, usual, &[64; 200]));
    assert!(pays(8, Capacity::Unlimited, &[64; 8]), "few rows");
    assert!(pays(8, usual, &[0, 0]), "only padding: no expert takes anything");
    assert!(!pays(8, Capacity::Unlimited, &[64; 9]), "eight times the tokens");
    assert!(!pays(64, usual, &[64; 17]), "four places an expert at least are four times the tokens");
}
