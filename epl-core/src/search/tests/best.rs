//! The search against all layouts, tried one by one, judged by the same simulation.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{column, device, given, judge};
use crate::config::{Config, OffloadLevel, ZeroLevel};
use crate::cost::{ClusterDevices, Network, NetworkLink, Rates};
use crate::search::candidate::Candidate;
use crate::search::column::Columns;
use crate::search::draft;
use crate::search::judge::{Judge, Judged};
use crate::search::kept::Kept;
use crate::search::run::search;
use crate::search::space::{LeastSeconds, levels, shapes};
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

/// The least seconds of any layout that fits, and which that is; none: no one does. Nothing is put away where one fits without.
fn by_trying_all(judge: &Judge<'_>, given: &Config, segments: usize) -> Option<(f64, Candidate)> {
    let at = |offload| by_trying_all_at(judge, given, segments, offload);
    at(OffloadLevel::Off).or_else(|| at(OffloadLevel::V0))
}

fn by_trying_all_at(
    judge: &Judge<'_>,
    given: &Config,
    segments: usize,
    put_away: OffloadLevel,
) -> Option<(f64, Candidate)> {
    let mut best: Option<(f64, Candidate)> = None;
    for shape in shapes(given, judge, segments, &Kept::default()).shapes {
        let divided = if shape.by_speed { row_divisions(judge.batch, shape.sizes[0]) } else { vec![None] };
        let layouts = all_cuts(segments, shape.sizes[1] * shape.chunks)
            .into_iter()
            .flat_map(|cuts| divided.iter().map(move |rows| (cuts.clone(), rows.clone())));
        for (cuts, row_weights) in layouts {
            for level in levels(given, shape.sizes[0]).into_iter().filter(|level| level.1 == put_away) {
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

/// Of found ÷ best, how many are above 1.01, and the largest.
fn compared(
    instances: usize,
    segments: usize,
    ranks: usize,
    budget: impl Fn(&mut ChaCha8Rng) -> Option<u64>,
) -> (usize, f64) {
    compared_on(instances, segments, ranks, |numbers| ClusterDevices::alike(ranks, budget(numbers)))
}

fn compared_on(
    instances: usize,
    segments: usize,
    ranks: usize,
    devices: impl Fn(&mut ChaCha8Rng) -> ClusterDevices,
) -> (usize, f64) {
    let (mut numbers, cluster) = (ChaCha8Rng::seed_from_u64(7), Cluster::local(ranks).unwrap());
    let link = NetworkLink { latency: 1e-3, bandwidth: 1e3 };
    let network = Network::of_links(vec![0; ranks], link, link);
    let given = given(ranks, &[("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")]);
    let (mut above, mut worst, mut none) = (0, 1.0_f64, 0);
    for instance in 0..instances {
        let devices = devices(&mut numbers);
        let columns = Columns::from([((1, 1), Ok(column(segments, &mut numbers, devices.are_bounded())))]);
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
        assert!(found.bound() <= best * (1.0 + 1e-9), "{} is above {best}", found.bound());
        above += usize::from(ratio > 1.01);
        worst = worst.max(ratio);
        assert!(ratio < 1.05, "{devices:?} {candidate:?} in {best}: {found}");
    }
    assert!(none < instances, "no instance has a layout");
    println!("{instances} instances, {none} without a layout, {above} above 1.01, worst {worst:.4}");
    (above, worst)
}

#[test]
fn what_is_found_is_the_best_of_all_layouts() {
    let (above, worst) = compared(200, 5, 4, |_| None);
    assert!(above <= 10 && worst <= 1.05, "{above} of 200 above 1.01, worst {worst}");
}

#[test]
fn what_is_found_within_a_budget_is_the_best_that_fits() {
    let (above, worst) = compared(100, 4, 2, |numbers| Some(numbers.random_range(300.0..6000.0) as u64));
    assert!(above <= 5 && worst <= 1.05, "{above} of 100 above 1.01, worst {worst}");
}

#[test]
#[ignore = "takes a minute: `cargo test --workspace --lib -- --ignored a_thousand`"]
fn what_is_found_is_the_best_of_all_layouts_a_thousand_times() {
    let (above, worst) = compared(600, 5, 4, |_| None);
    assert!(above <= 30 && worst <= 1.05, "{above} of 600 above 1.01, worst {worst}");
    let (above, worst) = compared(400, 4, 2, |numbers| Some(numbers.random_range(300.0..6000.0) as u64));
    assert!(above <= 20 && worst <= 1.05, "{above} of 400 above 1.01, worst {worst}");
}

#[test]
fn what_is_found_for_unequal_devices_is_the_best_of_all_layouts() {
    let two = |numbers: &mut ChaCha8Rng| {
        let fast = numbers.random_range(1.2..3.0);
        ClusterDevices::new(vec![device(1.0, None), device(fast, None)])
    };
    let (above, worst) = compared_on(60, 4, 2, two);
    assert!(above <= 3 && worst <= 1.05, "{above} of 60 above 1.01, worst {worst}");
    let four = |numbers: &mut ChaCha8Rng| {
        let fast = device(numbers.random_range(1.2..3.0), None);
        ClusterDevices::new(vec![fast, fast, device(1.0, None), device(1.0, None)])
    };
    let (above, worst) = compared_on(12, 4, 4, four);
    assert!(above <= 1 && worst <= 1.05, "{above} of 12 above 1.01, worst {worst}");
    let small = |numbers: &mut ChaCha8Rng| {
        let [one, other] = [0, 1].map(|_| Some(numbers.random_range(300.0..6000.0) as u64));
        ClusterDevices::new(vec![device(1.0, one), device(numbers.random_range(1.0..2.0), other)])
    };
    let (above, worst) = compared_on(40, 4, 2, small);
    assert!(above <= 4 && worst <= 1.05, "{above} of 40 above 1.01, worst {worst}");
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
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let network = Network::of_links(vec![0; ranks], link, link);
    let given = given(ranks, &[("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")]);
    for _ in 0..chains {
        let columns = Columns::from([((1, 1), Ok(column(segments, &mut numbers, false)))]);
        let rates = Rates { spared: 0.3, ..Rates::default() };
        let judge = Judge { rates, ..judge(&columns, &cluster, &network, (5, None)) };
        for shape in shapes(&given, &judge, segments, &Kept::default()).shapes {
            let Some(Ok(column)) = columns.get(&(1, 1)) else { panic!("it is there") };
            let mesh = crate::Mesh::new(
                crate::MeshSizes::new(shape.sizes[0], shape.sizes[1], 1, 1).unwrap(),
                given.dist.order,
            );
            let replica = judge.replicas(&mesh, shape.micro_batches).unwrap().remove(0);
            let calls = Some((&mesh, mesh.first(), &network));
            let costs = column.costs(replica.rows[shape.micro_batches - 1], calls);
            let bound = LeastSeconds::of(&costs, &judge.beside_nobody(&replica.devices)).bound(&shape);
            for cuts in all_cuts(segments, shape.sizes[1] * shape.chunks) {
                let level = (ZeroLevel::Off, OffloadLevel::Off);
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
