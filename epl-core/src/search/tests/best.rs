//! The search against all layouts, tried one by one, judged by the same simulation.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::divided::Divided;
use super::{device, given, judge};
use crate::config::{Config, OffloadLevel, ZeroLevel};
use crate::cost::{ClusterDevices, Network, NetworkLink, Rates};
use crate::search::candidate::{Candidate, PutAway};
use crate::search::draft::{self, Drafts};
use crate::search::judge::{Judge, Judged};
use crate::search::kept::Kept;
use crate::search::run::search;
use crate::search::space::{levels, shapes, ways_to_put_away};
use crate::topology::cluster::Cluster;

/// All ways to cut so many segments into so many parts.
fn all_cuts(segments: usize, parts: usize) -> Vec<Vec<usize>> {
    let extend = |ways: Vec<Vec<usize>>| -> Vec<Vec<usize>> {
        let longer = |way: &Vec<usize>| {
            (way.last().map_or(1, |last| last + 1)..segments).map(|cut| [&way[..], &[cut]].concat()).collect::<Vec<_>>()
        };
        ways.iter().flat_map(longer).collect()
    };
    (1..parts).fold(vec![Vec::new()], |ways, _| extend(ways))
}

/// The least seconds of any layout that fits, and which that is; none: no one does. As little is put away as lets one fit.
fn by_trying_all(judge: &Judge<'_>, given: &Config, segments: usize) -> Option<(f64, Candidate)> {
    let mut ways = ways_to_put_away(given, judge.devices.are_bounded()).into_iter();
    ways.find_map(|away| by_trying_all_at(judge, given, segments, away))
}

fn by_trying_all_at(judge: &Judge<'_>, given: &Config, segments: usize, away: PutAway) -> Option<(f64, Candidate)> {
    let mut best: Option<(f64, Candidate)> = None;
    for shape in shapes(given, judge, segments, &Kept::default()).shapes {
        let divided = if shape.by_speed { row_divisions(judge.batch, shape.sizes[0]) } else { vec![None] };
        let layouts = all_cuts(segments, shape.sizes[1] * shape.chunks)
            .into_iter()
            .flat_map(|cuts| divided.iter().map(move |rows| (cuts.clone(), rows.clone())));
        for (cuts, row_weights) in layouts {
            for level in levels(given, shape.sizes[0], away) {
                let is_free = judge.devices.are_bounded() && !draft::runs_all(given, level);
                for again in 0..if is_free { 1_usize << (segments - 1) } else { 1 } {
                    let runs = (0..segments).filter(|segment| again >> segment & 1 == 1).map(|at| at..at + 1).collect();
                    let (row_weights, cuts) = (row_weights.clone(), cuts.clone());
                    let candidate = Candidate { shape, level, row_weights, whole_layers: None, cuts, runs };
                    let judged: Judged = judge.judge(&candidate.config(given).unwrap()).unwrap();
                    if judged.over() == 0 && best.as_ref().is_none_or(|(seconds, _)| judged.seconds < *seconds) {
                        best = Some((judged.seconds, candidate));
                    }
                }
            }
        }
    }
    best
}

/// All ways to divide so many rows over so many replicas.
fn row_divisions(rows: usize, replicas: usize) -> Vec<Option<Vec<usize>>> {
    let extend = |ways: Vec<Vec<usize>>| -> Vec<Vec<usize>> {
        let longer = |way: &Vec<usize>| {
            let left = rows - way.iter().sum::<usize>();
            (0..=left).map(|own| [&way[..], &[own]].concat()).collect::<Vec<_>>()
        };
        ways.iter().flat_map(longer).collect()
    };
    let all = (1..replicas).fold(vec![Vec::new()], |ways, _| extend(ways));
    all.into_iter().map(|way| Some([&way[..], &[rows - way.iter().sum::<usize>()]].concat())).collect()
}

/// The options that leave layers whole.
const WHOLE: [(&str, &str); 2] = [("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")];

/// Chains of so many segments over so many ranks, along the axes that these options leave.
struct Instances<'a> {
    segments: usize,
    ranks: usize,
    options: &'a [(&'a str, &'a str)],
}

const PLAIN: Instances<'_> = Instances { segments: 5, ranks: 4, options: &WHOLE };
const ON_TWO: Instances<'_> = Instances { segments: 4, ranks: 2, options: &WHOLE };
const ALL_AXES: Instances<'_> = Instances { segments: 4, ranks: 4, options: &[] };
const ALL_AXES_ON_TWO: Instances<'_> = Instances { segments: 4, ranks: 2, options: &[] };

/// A drawn one, from too little for any layout to enough for all.
fn budget(numbers: &mut ChaCha8Rng) -> Option<u64> {
    Some(numbers.random_range(300.0..9000.0) as u64)
}

/// Searches so many of them: a layout is found where there is one, none is above 1.05 of the best, and one of twenty at most above 1.01.
fn are_best(
    count: usize,
    &Instances { segments, ranks, options }: &Instances<'_>,
    devices: impl Fn(&mut ChaCha8Rng) -> ClusterDevices,
) {
    let (mut numbers, cluster) = (ChaCha8Rng::seed_from_u64(7), Cluster::local(ranks).unwrap());
    let link = NetworkLink { latency: 1e-3, bandwidth: 1e3 };
    let network = Network::of_links(vec![0; ranks], link, link);
    let given = given(ranks, options);
    let model = Divided::new(&given, ranks, segments);
    let (mut above, mut worst, mut none, mut divided) = (0, 1.0_f64, 0, 0);
    let mut put_away: Vec<PutAway> = Vec::new();
    let mut is_bounded = false;
    for instance in 0..count {
        let devices = devices(&mut numbers);
        is_bounded |= devices.are_bounded();
        let columns = model.columns(&mut numbers, devices.are_bounded());
        let judge = judge(&columns, &cluster, &network, (4 + instance % 2, None));
        // Ranks that share a processor, and spare each other time, are alike.
        let rates = if devices.are_alike() { judge.rates } else { Rates { spared: 0.0, ..judge.rates } };
        let judge = Judge { devices: devices.clone(), rates, ..judge };
        let best = by_trying_all(&judge, &given, segments);
        let found = search(&judge, &given, segments);
        assert_eq!(found.is_ok(), best.is_some(), "{devices:?} {best:?}: {found:?}");
        let (Ok(found), Some((best, candidate))) = (found, best) else {
            none += 1;
            continue;
        };
        let ratio = found.best().seconds() / best;
        divided += usize::from(candidate.shape.sizes[2] * candidate.shape.sizes[3] > 1);
        put_away.push(candidate.level.1);
        assert!(found.bound() <= best * (1.0 + 1e-9), "{} is above {best}", found.bound());
        above += usize::from(ratio > 1.01);
        worst = worst.max(ratio);
        assert!(ratio < 1.05, "{devices:?} {candidate:?} in {best}: {found}");
    }
    let ways = ways_to_put_away(&given, true).into_iter().filter(|way| put_away.contains(way)).count();
    assert!(none < count && (none > 0 && ways > 1 || !is_bounded), "{none} without a layout, {ways} ways");
    // Where it may be, it is better for some, and not for all.
    assert_eq!((1..count - none).contains(&divided), options.is_empty(), "{divided} of {count} are divided");
    println!("{count} instances, {none} without a layout, {above} above 1.01, worst {worst:.4}, {divided} divided");
    assert!(above <= count / 20, "{above} of {count} above 1.01, worst {worst}");
}

/// Two devices with drawn budgets, of which one may be faster.
fn small(numbers: &mut ChaCha8Rng) -> ClusterDevices {
    let [one, other] = [0, 1].map(|_| budget(numbers));
    ClusterDevices::new(vec![device(1.0, one), device(numbers.random_range(1.0..2.0), other)])
}

#[test]
fn what_is_found_is_the_best_of_all_layouts() {
    are_best(40, &PLAIN, |_| ClusterDevices::alike(4, None));
    are_best(40, &ALL_AXES, |_| ClusterDevices::alike(4, None));
}

#[test]
fn what_is_found_within_a_budget_is_the_best_that_fits() {
    let devices = |numbers: &mut ChaCha8Rng| ClusterDevices::alike(2, budget(numbers));
    are_best(25, &ON_TWO, devices);
    are_best(25, &ALL_AXES_ON_TWO, devices);
}

#[test]
#[ignore = "takes some minutes: `cargo test --workspace --lib -- --ignored a_thousand`"]
fn what_is_found_is_the_best_of_all_layouts_a_thousand_times() {
    for instances in [PLAIN, ALL_AXES] {
        are_best(300, &instances, |_| ClusterDevices::alike(4, None));
    }
    for instances in [ON_TWO, ALL_AXES_ON_TWO] {
        are_best(150, &instances, |numbers| ClusterDevices::alike(2, budget(numbers)));
    }
    are_best(100, &ON_TWO, small);
    are_best(30, &ALL_AXES, |numbers| ClusterDevices::alike(4, budget(numbers)));
}

#[test]
fn what_is_found_for_unequal_devices_is_the_best_of_all_layouts() {
    are_best(25, &ON_TWO, |numbers| {
        ClusterDevices::new(vec![device(1.0, None), device(numbers.random_range(1.2..3.0), None)])
    });
    are_best(6, &Instances { segments: 4, ..PLAIN }, |numbers| {
        let fast = device(numbers.random_range(1.2..3.0), None);
        ClusterDevices::new(vec![fast, fast, device(1.0, None), device(1.0, None)])
    });
    are_best(20, &ON_TWO, small);
}

#[test]
fn no_layout_is_below_its_bound() {
    let looked_at = layouts_above_their_bounds(15);
    assert!(looked_at > 1000, "{looked_at}");
}

#[test]
#[ignore = "takes a minute: `cargo test --workspace --lib -- --ignored a_hundred_thousand`"]
fn none_of_a_hundred_thousand_layouts_is_below_its_bound() {
    let (mut chains, mut looked_at) = (15, 0);
    while looked_at < 100_000 {
        looked_at = layouts_above_their_bounds(chains);
        chains = chains * 110_000 / looked_at.max(1) + 1;
    }
    println!("{looked_at} layouts");
}

/// Compares all layouts of some random chains with their bounds; how many these are.
fn layouts_above_their_bounds(chains: usize) -> usize {
    let mut looked_at = 0;
    let (mut numbers, ranks, segments) = (ChaCha8Rng::seed_from_u64(11), 4, 5);
    let cluster = Cluster::local(ranks).unwrap();
    let given = given(ranks, &[]);
    let model = Divided::new(&given, ranks, segments);
    for chain in 0..chains {
        // Calls take nothing, some time, or more than segments.
        let link = NetworkLink { latency: 0.0, bandwidth: [1e12, 1e3, 20.0][chain % 3] };
        let far = NetworkLink { latency: 0.1, ..link };
        // Ranks on one host or on two, alike or not; as many micro-batches as are simulated one by one, or more.
        let hosts = if chain % 2 == 0 { vec![0; ranks] } else { vec![0, 0, 1, 1] };
        let network = Network::of_links(hosts, link, far);
        let columns = model.columns(&mut numbers, false);
        let (spared, devices) = match chain % 4 {
            0 | 1 => (0.3, ClusterDevices::alike(ranks, None)),
            _ => (0.0, ClusterDevices::new([1.0, 2.0, 1.0, 3.0].map(|speed| device(speed, None)).to_vec())),
        };
        let rates = Rates { spared, lost: 0.2, copy: 1e-2, ..Rates::default() };
        let batch = if chain % 5 == 0 { 64 } else { 5 };
        let judge = Judge { rates, devices, ..judge(&columns, &cluster, &network, (batch, None)) };
        let drafts = Drafts::new(&judge, &given);
        let shapes = shapes(&given, &judge, segments, &Kept::default()).shapes;
        for shape in shapes.into_iter().filter(|shape| !shape.by_speed) {
            let least = drafts.least(&shape).unwrap();
            let bound = drafts.bound(&shape, &least).unwrap();
            for cuts in all_cuts(segments, shape.sizes[1] * shape.chunks) {
                let level = (ZeroLevel::Off, PutAway::Offload(OffloadLevel::Off));
                let candidate =
                    Candidate { shape, level, row_weights: None, whole_layers: None, cuts, runs: Vec::new() };
                let judged = judge.judge(&candidate.config(&given).unwrap()).unwrap();
                assert!(judged.seconds >= bound * (1.0 - 1e-9), "{}: {} < {bound}", candidate.words(), judged.seconds);
                looked_at += 1;
            }
        }
    }
    looked_at
}
