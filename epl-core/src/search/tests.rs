//! The search against all layouts, tried one by one, judged by the same simulation.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::candidate::Candidate;
use super::column::{Column, Columns};
use super::judge::{Judge, Judged};
use super::run::search;
use super::space::{bound, levels, shapes};
use crate::config::{Config, Layers, OffloadLevel, ZeroLevel};
use crate::cost::{Line, Network, NetworkLink, Rates, SegmentTime};
use crate::memory::{Activations, Fit, OptimizerState, SegmentActivations};
use crate::simulate::ShapesOverRows;
use crate::topology::cluster::Cluster;
use crate::{Chain, Place, launch_dry};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

fn chain(at: &Place, segments: usize) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let net = Net { layers: (0..segments).map(|_| LinearConfig::new(3, 3).init(at)).collect() };
    let first = Chain::of(net).first(&["layers.0"], |net: &Net, rows: &Tensor<2>| net.layers[0].forward(rows.clone()));
    let layers = (1..segments).fold(first, |chain, index| {
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| net.layers[index].forward(rows))
    });
    layers.mean_loss(|_, rows, _| rows.mean())
}

/// A chain whose segments are of three kinds with random costs.
fn column(segments: usize, numbers: &mut ChaCha8Rng, with_bytes: bool) -> Column {
    let (mut column, _) = launch_dry(&Config::new(), 0, |epl| {
        let lazy = epl.plan(|at| chain(at, segments))?;
        let batch = |kind: usize, device: &_| Ok(Tensor::ones([kind + 1, 3], device));
        let (shapes, _) = lazy.timed_shapes(&[1, 2], &[0, 1], 0, batch)?;
        let shapes = ShapesOverRows::through(shapes, [1, 2])?;
        Ok(Column { builder: lazy.builder, segments: Vec::new(), shapes, activations: None })
    })
    .unwrap();
    let proportional = |per_row: f64| Fit { fixed: 0.0, per_row };
    let mut kind = || {
        let (forward, longer) = (numbers.random_range(0.5..2.0), numbers.random_range(1.5..3.0));
        let time = SegmentTime {
            forward: Line::through([(1.0, forward)]),
            backward: Line::through([(1.0, forward * longer)]),
        };
        let bytes = SegmentActivations {
            carry: proportional(numbers.random_range(20.0..100.0)),
            stored: proportional(numbers.random_range(100.0..500.0)),
            results: Fit::default(),
            working: proportional(100.0),
        };
        (time, bytes)
    };
    let kinds = [kind(), kind(), kind()];
    let of_segment: Vec<usize> = (0..segments).map(|_| numbers.random_range(0..3)).collect();
    column.segments = of_segment.iter().map(|kind| kinds[*kind].0.clone()).collect();
    let bytes = of_segment.iter().map(|kind| Some(kinds[*kind].1)).collect();
    column.activations = with_bytes.then_some(Activations { segments: bytes, measured: [1, 2] });
    column
}

fn judge<'a>(
    columns: &'a Columns,
    cluster: &'a Cluster,
    network: &'a Network,
    (batch, budget): (usize, Option<u64>),
) -> Judge<'a> {
    Judge {
        columns,
        cluster,
        network,
        rates: Rates { update: 1e-2, copy: 1e-4, lost: 0.2 },
        state: OptimizerState::PerElement(2),
        batch,
        budget,
        budget_of: "offload.device_bytes",
        margin: 0.0,
        lanes: 2,
    }
}

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
    for shape in shapes(given, judge.cluster.world_size(), judge.batch, segments) {
        for cuts in all_cuts(segments, shape.sizes[1] * shape.chunks) {
            for level in levels(given, shape.sizes[0]).into_iter().filter(|level| level.1 == put_away) {
                let is_free = judge.budget.is_some() && !super::draft::runs_all(given, level);
                for again in 0..if is_free { 1_usize << (segments - 1) } else { 1 } {
                    let runs = (0..segments).filter(|segment| again >> segment & 1 == 1).map(|at| at..at + 1).collect();
                    let candidate = Candidate { shape, level, cuts: cuts.clone(), runs };
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

fn given(ranks: usize, options: &[(&str, &str)]) -> Config {
    let said = options.iter().map(|(key, value)| format!("{key}={value}"));
    let said = said.chain([format!("cluster.ranks={ranks}"), "auto.auto_parallel=true".to_string()]);
    Layers::new().command_line(said).unwrap().resolve().unwrap()
}

/// Of found ÷ best, how many are above 1.01, and the largest.
fn compared(
    instances: usize,
    segments: usize,
    ranks: usize,
    budget: impl Fn(&mut ChaCha8Rng) -> Option<u64>,
) -> (usize, f64) {
    let (mut numbers, cluster) = (ChaCha8Rng::seed_from_u64(7), Cluster::local(ranks).unwrap());
    let link = NetworkLink { latency: 1e-3, bandwidth: 1e3 };
    let network = Network::of_links(vec![0; ranks], link, link);
    let given = given(ranks, &[("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")]);
    let (mut above, mut worst, mut none) = (0, 1.0_f64, 0);
    for instance in 0..instances {
        let budget = budget(&mut numbers);
        let columns = Columns::from([((1, 1), Ok(column(segments, &mut numbers, budget.is_some())))]);
        let judge = judge(&columns, &cluster, &network, (4 + instance % 2, budget));
        let best = by_trying_all(&judge, &given, segments);
        let found = search(&judge, &given, segments);
        assert_eq!(found.is_ok(), best.is_some(), "{budget:?} {best:?}: {found:?}");
        let (Ok(found), Some((best, candidate))) = (found, best) else {
            none += 1;
            continue;
        };
        let ratio = found.best().seconds() / best;
        assert!(found.bound() <= best * (1.0 + 1e-9), "{} is above {best}", found.bound());
        above += usize::from(ratio > 1.01);
        worst = worst.max(ratio);
        assert!(ratio < 1.05, "{budget:?} {candidate:?} in {best}: {found}");
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
fn no_layout_is_below_its_bound() {
    let (mut numbers, ranks, segments) = (ChaCha8Rng::seed_from_u64(11), 4, 5);
    let cluster = Cluster::local(ranks).unwrap();
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let network = Network::of_links(vec![0; ranks], link, link);
    let given = given(ranks, &[("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")]);
    for _ in 0..5 {
        let columns = Columns::from([((1, 1), Ok(column(segments, &mut numbers, false)))]);
        let judge = Judge { rates: Rates::default(), ..judge(&columns, &cluster, &network, (5, None)) };
        for shape in shapes(&given, ranks, judge.batch, segments) {
            let Some(Ok(column)) = columns.get(&(1, 1)) else { panic!("it is there") };
            let mesh = crate::Mesh::new(
                crate::MeshSizes::new(shape.sizes[0], shape.sizes[1], 1, 1).unwrap(),
                given.dist.order,
            );
            let rows = judge.rows(shape.sizes[0], shape.micro_batches);
            let costs = column.costs(rows[rows.len() - 1].max(1), &mesh, &network);
            let bound = bound(&costs, &shape);
            for cuts in all_cuts(segments, shape.sizes[1] * shape.chunks) {
                let level = (ZeroLevel::Off, OffloadLevel::Off);
                let candidate = Candidate { shape, level, cuts, runs: Vec::new() };
                let judged = judge.judge(&candidate.config(&given).unwrap()).unwrap();
                assert!(judged.seconds >= bound * (1.0 - 1e-9), "{}: {} < {bound}", candidate.words(), judged.seconds);
            }
        }
    }
}

#[test]
fn what_is_given_stays() {
    let cluster = Cluster::local(4).unwrap();
    let link = NetworkLink { latency: 1e-3, bandwidth: 1e3 };
    let network = Network::of_links(vec![0; 4], link, link);
    let columns = Columns::from([((1, 1), Ok(column(6, &mut ChaCha8Rng::seed_from_u64(3), false)))]);
    let judge = judge(&columns, &cluster, &network, (5, None));
    let ones = [("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")];
    for (key, value, told) in [
        ("dist.pipeline_parallel_size", "2", "stages 2"),
        ("dist.data_parallel_size", "4", "data 4"),
        ("pipeline.num_micro_batch", "2", "2 micro-batches"),
        ("zero.level", "v1", "micro-batch"),
        ("pipeline.num_chunks", "2", "2 chunks"),
    ] {
        let given = given(4, &[&ones[..], &[(key, value)]].concat());
        let found = search(&judge, &given, 6).unwrap();
        for choice in [found.best()].into_iter().chain(found.next()) {
            assert!(choice.to_string().contains(told), "{key} in {choice}");
        }
        // Its settings, pasted behind what is given, are the same configuration.
        let said = [&ones[..], &[(key, value), ("cluster.ranks", "4")]].concat();
        let said = said.iter().map(|(key, value)| format!("{key}={value}"));
        let pasted = found.best().settings();
        let pasted =
            Layers::new().toml(&pasted, std::path::Path::new("found.toml")).unwrap().command_line(said).unwrap();
        let pasted = pasted.resolve().unwrap();
        for key in super::CHOSEN {
            assert_eq!(pasted.get(key), found.best().config().get(key), "{key}");
        }
    }
}
