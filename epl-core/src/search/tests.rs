//! The search against all layouts, tried one by one, judged by the same simulation.

use std::collections::BTreeSet;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::candidate::{Candidate, Shape};
use super::column::{Column, Columns};
use super::judge::{Judge, Judged};
use super::kept::Kept;
use super::run::search;
use super::space::{LeastSeconds, divisions, levels, shapes};
use crate::config::{Config, Layers, OffloadLevel, PipelineStrategy, RankOrder, ZeroLevel};
use crate::cost::{ClusterDevices, DeviceTraits, Line, Network, NetworkLink, Rates, SegmentTime};
use crate::memory::{Activations, Fit, OptimizerState, SegmentActivations};
use crate::plan::Plan;
use crate::simulate::{ShapesOverRows, StepProgram, StepShapes};
use crate::topology::cluster::{Axis, Cluster};
use crate::{Chain, Place, launch_dry};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

/// A layer each; with `tied`, the first one once more behind the last.
fn chain(at: &Place, segments: usize, tied: bool) -> Chain<Net, Tensor<2>, Tensor<2>> {
    chain_of(3, at, segments, tied)
}

/// The same with layers of a width.
fn chain_of(width: usize, at: &Place, segments: usize, tied: bool) -> Chain<Net, Tensor<2>, Tensor<2>> {
    let net = Net { layers: (0..segments).map(|_| LinearConfig::new(width, width).init(at)).collect() };
    let first = Chain::of(net).first(&["layers.0"], |net: &Net, rows: &Tensor<2>| net.layers[0].forward(rows.clone()));
    let layers = (1..segments).fold(first, |chain, index| {
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| net.layers[index].forward(rows))
    });
    match tied {
        true => {
            layers.then(&["layers.0"], |net, rows, _| net.layers[0].forward(rows)).mean_loss(|_, rows, _| rows.mean())
        }
        false => layers.mean_loss(|_, rows, _| rows.mean()),
    }
}

/// A chain whose segments are of three kinds with random costs.
fn column(segments: usize, numbers: &mut ChaCha8Rng, with_bytes: bool) -> Column {
    declaring((3, |_| {}), segments, numbers, with_bytes)
}

/// The same, of a model of a width that declares something.
fn declaring(
    (width, declare): (usize, fn(&Place)),
    segments: usize,
    numbers: &mut ChaCha8Rng,
    with_bytes: bool,
) -> Column {
    let ((builder, shapes), _) = launch_dry(&Config::new(), 0, |epl| {
        let lazy = epl.plan(|at| {
            declare(at);
            chain_of(width, at, segments, false)
        })?;
        let batch = |kind: usize, device: &_| Ok(Tensor::ones([kind + 1, width], device));
        let (shapes, _) = lazy.timed_shapes(&[1, 2], &[0, 1], 0, batch)?;
        Ok((lazy.builder, ShapesOverRows::through(shapes, [1, 2])?))
    })
    .unwrap();
    let proportional = |per_row: f64| Fit { fixed: 0.0, per_row };
    let mut kind = || {
        let (forward, longer) = (numbers.random_range(0.5..2.0), numbers.random_range(1.5..3.0));
        let time = SegmentTime {
            forward: Line::through([(1.0, forward)]),
            backward: Line::through([(1.0, forward * longer)]),
            untracked: Line::through([(1.0, forward)]),
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
    let times = of_segment.iter().map(|kind| kinds[*kind].0.clone()).collect();
    let bytes = of_segment.iter().map(|kind| Some(kinds[*kind].1)).collect();
    let activations = with_bytes.then_some(Activations { segments: bytes, measured: [1, 2] });
    Column::new(builder, times, shapes, activations)
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
        rates: Rates { update: 1e-2, host_update: Some(3e-2), copy: 1e-4, lost: 0.2, spared: 0.1 },
        state: OptimizerState::PerElement(2),
        batch,
        devices: ClusterDevices::alike(cluster.world_size(), budget),
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
    for shape in shapes(given, judge, segments, &Kept::default()).shapes {
        let divided = if shape.by_speed { row_divisions(judge.batch, shape.sizes[0]) } else { vec![None] };
        let layouts = all_cuts(segments, shape.sizes[1] * shape.chunks)
            .into_iter()
            .flat_map(|cuts| divided.iter().map(move |rows| (cuts.clone(), rows.clone())));
        for (cuts, row_weights) in layouts {
            for level in levels(given, shape.sizes[0]).into_iter().filter(|level| level.1 == put_away) {
                let is_free = judge.devices.are_bounded() && !super::draft::runs_all(given, level);
                for again in 0..if is_free { 1_usize << (segments - 1) } else { 1 } {
                    let runs = (0..segments).filter(|segment| again >> segment & 1 == 1).map(|at| at..at + 1).collect();
                    let candidate =
                        Candidate { shape, level, row_weights: row_weights.clone(), cuts: cuts.clone(), runs };
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

fn device(speed: f64, bytes: Option<u64>) -> DeviceTraits {
    DeviceTraits { compute: speed, memory: speed, bytes }
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
fn links_count_where_they_are() {
    // Two hosts of two, of which the one has slow links: layers that call over tensor ranks are there as slow.
    let fast = NetworkLink { latency: 1e-6, bandwidth: 1e9 };
    let slow = NetworkLink { latency: 1.0, bandwidth: 1e3 };
    let outside = NetworkLink { latency: 1e-3, bandwidth: 1e6 };
    let (cluster, mut numbers) = (Cluster::new(vec![2, 2], 0).unwrap(), ChaCha8Rng::seed_from_u64(2));
    let mut own = column(4, &mut numbers, false);
    let call = crate::simulate::Called {
        over: crate::simulate::Members::Axis(Axis::Tensor),
        operation: epl_comm::Operation::AllReduce(epl_comm::ReduceOp::Sum),
        dtype: burn::tensor::DType::F32,
        elements: 8,
    };
    own.shapes = own.shapes.with_forward_call(0, call);
    let seconds = |links: [NetworkLink; 2]| {
        let columns = Columns::from([((2, 1), Ok(own.clone()))]);
        let hosts = links.map(|inside| [inside, outside]).to_vec();
        let network = Network::of_hosts(vec![0, 0, 1, 1], hosts);
        let judge = judge(&columns, &cluster, &network, (4, None));
        let config = given(4, &[("dist.tensor_parallel_size", "2")]);
        let config = Config { auto: Config::default().auto, ..config };
        judge.judge(&config).unwrap().seconds
    };
    let [first, second, neither] = [[slow, fast], [fast, slow], [fast, fast]].map(seconds);
    assert!((first - second).abs() < 1e-9 && first > neither + 1.9, "{first} {second} {neither}");
}

/// A search among layouts of even segments for so many rows, on devices of these speeds.
fn found_over(
    link: NetworkLink,
    speeds: &[f64],
    (segments, rows): (usize, usize),
    options: &[(&str, &str)],
) -> super::Found {
    found_with(Rates::default(), (link, speeds), (segments, rows), options)
}

/// The same with rates of an update and of copies.
fn found_with(
    rates: Rates,
    (link, speeds): (NetworkLink, &[f64]),
    (segments, rows): (usize, usize),
    options: &[(&str, &str)],
) -> super::Found {
    let (ranks, cluster) = (speeds.len(), Cluster::local(speeds.len()).unwrap());
    let network = Network::of_links(vec![0; ranks], link, link);
    let mut column = column(segments, &mut ChaCha8Rng::seed_from_u64(1), false);
    let even = SegmentTime {
        forward: Line::through([(1.0, 1.0)]),
        backward: Line::through([(1.0, 2.0)]),
        untracked: Line::through([(1.0, 1.0)]),
    };
    column = Column::new(column.builder, vec![even; segments], column.shapes, None);
    let columns = Columns::from([((1, 1), Ok(column))]);
    let devices = ClusterDevices::new(speeds.iter().map(|speed| device(*speed, None)).collect());
    let judge = Judge { devices, rates, ..judge(&columns, &cluster, &network, (rows, None)) };
    let ones = [("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")];
    search(&judge, &given(ranks, &[&ones[..], options].concat()), segments).unwrap()
}

#[test]
fn stages_and_rows_are_divided_by_speed() {
    let (speeds, link) = ([2.0, 2.0, 1.0, 1.0], NetworkLink { latency: 0.0, bandwidth: 1e12 });
    let found_on = |options: &[(&str, &str)]| found_over(link, &speeds, (12, 24), options);
    let stages = found_on(&[("dist.pipeline_parallel_size", "4"), ("pipeline.num_chunks", "1")]);
    assert_eq!(stages.best().config().pipeline.cuts, Some(vec![4, 8, 10]), "{stages}");
    // Rows, where stages are even: as much faster as the devices are together.
    let of = |weights: &[(&str, &str)]| {
        let given = [&[("dist.pipeline_parallel_size", "1"), ("pipeline.num_micro_batch", "1")], weights].concat();
        found_on(&given)
    };
    let (even, divided) = (of(&[("io.row_weights", "1,1,1,1")]), of(&[]));
    assert_eq!(divided.best().config().io.row_weights, Some(vec![2, 2, 1, 1]), "{divided}");
    assert!((even.best().seconds() / divided.best().seconds() - 1.5).abs() < 1e-6, "{even} {divided}");
    // Both: a replica of the fast devices and one of the slow ones, or a stage of each.
    let two = [("dist.pipeline_parallel_size", "2"), ("pipeline.num_micro_batch", "4"), ("pipeline.num_chunks", "1")];
    let both = found_on(&two);
    let even = found_on(&[&two[..], &[("io.row_weights", "1,1"), ("pipeline.cuts", "6")]].concat());
    let choice = both.best().config();
    let faster = choice.pipeline.cuts.as_ref().is_some_and(|cuts| cuts[0] > 7);
    assert!(choice.io.row_weights == Some(vec![2, 1]) || faster, "{both}");
    assert!(even.best().seconds() / both.best().seconds() > 1.4, "{even} {both}");
}

#[test]
fn a_device_that_delays_the_others_is_told() {
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let three = [("dist.data_parallel_size", "3"), ("pipeline.num_micro_batch", "1")];
    let found = found_over(link, &[8.0, 8.0, 1.0], (2, 8), &three);
    assert_eq!(found.best().config().io.row_weights, Some(vec![4, 3, 1]), "{found}");
    assert!(found.without().is_none(), "what is given is of three: {found}");
    // A row takes the slow one as long as eight take another.
    let found = found_over(link, &[8.0, 8.0, 1.0], (2, 8), &[("pipeline.num_micro_batch", "1")]);
    let (ranks, choice) = found.without().unwrap();
    assert!(ranks == [2] && choice.seconds() < found.best().seconds(), "{found}");
    assert!(found.to_string().contains("without ranks [2], start the others alone: data 2"), "{found}");
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
                let candidate = Candidate { shape, level, row_weights: None, cuts, runs: Vec::new() };
                let judged = judge.judge(&candidate.config(&given).unwrap()).unwrap();
                assert!(judged.seconds >= bound * (1.0 - 1e-9), "{}: {} < {bound}", candidate.words(), judged.seconds);
                looked_at += 1;
            }
        }
    }
    looked_at
}

/// Seconds of a layout of four segments that take 1 forward, 2 backward and a quarter without a graph for a row, of 8 rows.
fn seconds_of((data, stages): (usize, usize), runs: &[core::ops::Range<usize>], rates: Rates) -> f64 {
    let cluster = Cluster::local(data * stages).unwrap();
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let network = Network::of_links(vec![0; data * stages], link, link);
    let Column { builder, shapes, .. } = column(4, &mut ChaCha8Rng::seed_from_u64(1), false);
    let line = |seconds: f64| Line::through([(1.0, seconds)]);
    let even = SegmentTime { forward: line(1.0), backward: line(2.0), untracked: line(0.25) };
    let columns = Columns::from([((1, 1), Ok(Column::new(builder, vec![even; 4], shapes, None)))]);
    let judge = Judge { rates, ..judge(&columns, &cluster, &network, (8, None)) };
    let shape = Shape {
        sizes: [data, stages, 1, 1],
        micro_batches: 1,
        chunks: 1,
        strategy: PipelineStrategy::PreferBackward,
        order: RankOrder::DataPipelineTensor,
        by_speed: false,
    };
    let cuts = if stages > 1 { vec![2] } else { Vec::new() };
    let level = (ZeroLevel::Off, OffloadLevel::Off);
    let candidate = Candidate { shape, level, row_weights: None, cuts, runs: runs.to_vec() };
    judge.judge(&candidate.config(&given(data * stages, &[])).unwrap()).unwrap().seconds
}

#[test]
fn what_is_run_again_takes_one_forward_without_a_graph_more() {
    let of = |runs: &[core::ops::Range<usize>]| seconds_of((1, 1), runs, Rates::default());
    assert_eq!(of(&[]), 4.0 * 3.0 * 8.0);
    assert_eq!(of(&[0..1, 2..3]) - of(&[]), 2.0 * 0.25 * 8.0);
}

#[test]
fn a_rank_is_faster_while_others_of_its_host_wait() {
    let of = |layout, spared| seconds_of(layout, &[], Rates { spared, ..Rates::default() });
    // Of two stages with one micro-batch one always waits, and of replicas none does.
    let (whole, spared) = (of((1, 2), 0.0), of((1, 2), 0.2));
    assert!((spared / whole - 0.9).abs() < 1e-3, "{spared} of {whole}");
    assert!((of((2, 1), 0.2) / of((2, 1), 0.0) - 1.0).abs() < 1e-3);
    assert_eq!(of((1, 1), 0.2), of((1, 1), 0.0));
}

/// Of a plan, all that a simulation and an estimate read.
fn what_counts(plan: &Plan, shapes: &StepShapes) -> String {
    let units = plan.params.units().map(|unit| {
        let names: Vec<&str> = unit.members.iter().map(|member| &*plan.records()[*member].name).collect();
        format!("{names:?} {:?} {} {:?} {:?} {}", unit.axis, unit.numel, unit.shards, unit.residency, unit.sent)
    });
    let units: Vec<String> = units.collect();
    let held = plan.held(OptimizerState::PerElement(2));
    let statistics: Vec<&str> = plan.statistics().map(|number| &*plan.records()[number].name).collect();
    format!(
        "{units:?} {held:?} {:?} {} {} {} {statistics:?} {:?} {:?}",
        plan.full_segments,
        plan.casts(),
        plan.two_segments(),
        plan.largest_bucket(ZeroLevel::V3),
        plan.stages,
        StepProgram::new(plan, shapes).unwrap()
    )
}

#[test]
fn a_plan_of_a_stages_own_parameters_counts_as_the_whole_one() {
    let tied = |at: &Place| chain(at, 5, true);
    for options in [
        &[("dist.pipeline_parallel_size", "2"), ("zero.level", "v1")][..],
        &[("dist.pipeline_parallel_size", "2"), ("zero.level", "v3")],
        &[("dist.pipeline_parallel_size", "3"), ("pipeline.num_chunks", "2"), ("zero.level", "v2")],
        &[("dist.pipeline_parallel_size", "2"), ("amp.level", "O1"), ("amp.full_precision", "layers.4")],
        &[("dist.pipeline_parallel_size", "2"), ("optimizer.frozen", "layers.2"), ("offload.level", "v0")],
    ] {
        let ranks = if options[0].1 == "3" { 6 } else { 4 };
        let said = options.iter().map(|(key, value)| format!("{key}={value}"));
        let said = said.chain([format!("cluster.ranks={ranks}"), "pipeline.num_micro_batch=2".to_string()]);
        let config = Layers::new().command_line(said).unwrap().resolve().unwrap();
        let compared = launch_dry(&config, 0, |epl| {
            let lazy = epl.plan(tied)?;
            let shapes = lazy.step_shapes(&[1], &[0, 0], |_, device| Tensor::ones([1, 3], device))?;
            let builder = lazy.builder.laid_for(&AdamWConfig::new())?;
            let ranks = epl.context().mesh().group(Axis::Pipeline, 0);
            for (rank, plan) in ranks.iter().zip(builder.plans_of(&ranks)?) {
                let whole = builder.clone().at(epl.context().mesh().coordinate(*rank)).plan()?;
                assert!(plan.records().iter().all(|record| record.held), "{options:?}");
                assert_eq!(what_counts(&plan, &shapes), what_counts(&whole, &shapes), "{options:?}, rank {rank}");
            }
            Ok(ranks.len())
        });
        assert!(compared.unwrap().0 > 1);
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

/// The replicas, micro-batches and orders of all layouts of four ranks, and whether rows may be divided by speed, for a model that
/// declares something.
fn left_by(
    declare: fn(&Place),
    options: &[(&str, &str)],
) -> (BTreeSet<usize>, BTreeSet<usize>, usize, bool, Vec<String>) {
    let (cluster, link) = (Cluster::local(4).unwrap(), NetworkLink { latency: 0.0, bandwidth: 1e12 });
    let network = Network::of_links(vec![0; 4], link, link);
    let own = declaring((3, declare), 4, &mut ChaCha8Rng::seed_from_u64(1), false);
    let columns = Columns::from([((1, 1), Ok(own))]);
    let devices = ClusterDevices::new([2.0, 2.0, 1.0, 1.0].map(|speed| device(speed, None)).to_vec());
    let judge = Judge { devices, ..judge(&columns, &cluster, &network, (16, None)) };
    let ones = [("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")];
    let given = given(4, &[&ones[..], options].concat());
    let kept = Kept::of(&judge, &given).unwrap();
    let all = shapes(&given, &judge, 4, &kept).shapes;
    assert!(search(&judge, &given, 4).unwrap().kept() == kept.reasons);
    let orders = [RankOrder::DataPipelineTensor, RankOrder::PipelineDataTensor];
    (
        all.iter().map(|shape| shape.sizes[0]).collect(),
        all.iter().map(|shape| shape.micro_batches).collect(),
        orders.iter().filter(|order| all.iter().any(|shape| shape.order == **order)).count(),
        all.iter().any(|shape| shape.by_speed),
        kept.reasons,
    )
}

#[test]
fn what_layers_take_over_rows_stays_over_these() {
    let (replicas, micro_batches, orders, by_speed, told) = left_by(|_| {}, &[]);
    assert_eq!((replicas.len(), orders, by_speed, told.len()), (3, 2, true, 0));
    assert!(micro_batches.len() > 4);
    // All rows of a step, whoever has them.
    let (replicas, micro_batches, _, by_speed, told) = left_by(|at| at.declare_over_micro_batch("their mean"), &[]);
    assert_eq!((replicas.len(), micro_batches, by_speed), (3, [1].into(), true));
    assert!(told.len() == 1 && told[0].starts_with("1 micro-batch, as without a search (their mean"), "{told:?}");
    // A part of them, which is another one for other replicas.
    let two = [("pipeline.num_micro_batch", "2")];
    let (replicas, micro_batches, _, by_speed, told) = left_by(|at| at.declare_over_micro_batch("their mean"), &two);
    assert_eq!((replicas, micro_batches, by_speed), ([4].into(), [2].into(), false));
    assert!(told.len() == 1 && told[0].starts_with("4 replicas, as without a search (their mean"), "{told:?}");
    // As the batch sizes say it for four replicas, and not for others.
    let sizes = [("train.global_batch_size", "16"), ("train.micro_batch_size", "4")];
    let (replicas, micro_batches, ..) = left_by(|at| at.declare_over_micro_batch("their mean"), &sizes);
    assert_eq!((replicas, micro_batches), ([4].into(), [1].into()));
    // Those of one replica.
    let (replicas, micro_batches, _, by_speed, told) = left_by(|at| at.declare_over_replica("their mean"), &[]);
    assert_eq!((replicas, micro_batches, by_speed, told.len()), ([4].into(), [1].into(), false, 2));
    let given = [("dist.data_parallel_size", "2"), ("dist.pipeline_parallel_size", "2"), two[0]];
    let (replicas, micro_batches, _, by_speed, told) = left_by(|at| at.declare_over_replica("their mean"), &given);
    assert_eq!((replicas, micro_batches, by_speed, told.len()), ([2].into(), [2].into(), false, 0));
    let clips = [("train.clip_norm", "1"), ("communication.clip_after_allreduce", "false")];
    assert_eq!(left_by(|_| {}, &clips).0, [4].into());
}

#[test]
fn replicas_that_read_files_of_their_own_stay() {
    let given = [("io.slicing", "true"), ("dist.pipeline_parallel_size", "2")];
    let (replicas, micro_batches, orders, by_speed, told) = left_by(|_| {}, &given);
    assert_eq!((replicas, orders, by_speed), ([2].into(), 1, false));
    assert!(
        micro_batches.len() > 1 && told[0].starts_with("2 replicas, as without a search (io.slicing = true"),
        "{told:?}"
    );
}

#[test]
fn burns_batch_norm_is_over_a_replicas_own_rows() {
    let net = |at: &Place| {
        Chain::of((BatchNormConfig::new(3).init(at), LinearConfig::new(3, 3).init(at)))
            .first(&["0"], |net: &(BatchNorm, Linear), rows: &Tensor<2>| net.0.forward(rows.clone()))
            .then(&["1"], |net, rows, _| net.1.forward(rows))
            .mean_loss(|_, rows, _| rows.mean())
    };
    let (builder, _) = launch_dry(&Config::new(), 0, |epl| Ok(epl.plan(net)?.builder)).unwrap();
    assert_eq!(builder.over_replica(), ["the statistics of batch norms"]);
    assert_eq!(builder.over_micro_batch(), builder.over_replica());
}

#[test]
fn why_no_layout_is_possible_is_told() {
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let told = |ranks: usize, batch: usize, options: &[(&str, &str)]| {
        let (cluster, network) = (Cluster::local(ranks).unwrap(), Network::of_links(vec![0; ranks], link, link));
        let columns = Columns::from([((1, 1), Ok(column(4, &mut ChaCha8Rng::seed_from_u64(1), false)))]);
        let ones = [("dist.tensor_parallel_size", "1"), ("dist.expert_parallel_size", "1")];
        let given = given(ranks, &[&ones[..], options].concat());
        search(&judge(&columns, &cluster, &network, (batch, None)), &given, 4).map(|found| found.to_string())
    };
    let sizes = [("train.global_batch_size", "10"), ("train.micro_batch_size", "4")];
    let error = told(2, 10, &sizes).unwrap_err().to_string();
    assert!(error.contains("data 2: ") && error.contains("10") && error.contains('4'), "{error}");
    let error = told(8, 8, &[("dist.pipeline_parallel_size", "8")]).unwrap_err().to_string();
    assert!(error.contains("stages 8: the model has 4 segments"), "{error}");
    // What else was not possible is told beside what was found.
    let found = told(8, 8, &[]).unwrap();
    assert!(found.contains("not possible, stages 8: the model has 4 segments"), "{found}");
}

#[test]
fn layers_are_divided_as_replicas_and_stages_leave_it() {
    let of = |options: &[(&str, &str)]| divisions(&given(8, options), 8);
    let both = [("dist.data_parallel_size", "4"), ("dist.pipeline_parallel_size", "2")];
    assert_eq!(of(&both), [(1, 1), (1, 2), (1, 4)]);
    assert_eq!(of(&[("dist.pipeline_parallel_size", "4")]), [(1, 1), (1, 2), (2, 1)]);
    assert_eq!(of(&[("dist.pipeline_parallel_size", "3")]), []);
}

#[test]
fn replicas_of_a_stage_lie_on_one_host_where_that_is_better() {
    // Gradients of 33 kB a stage, or rows of 256 bytes, from one host to another.
    let inside = NetworkLink { latency: 0.0, bandwidth: 1e9 };
    let outside = NetworkLink { latency: 0.0, bandwidth: 1e4 };
    let found = |hosts: Vec<usize>, options: &[(&str, &str)]| {
        let cluster = Cluster::new(hosts.clone(), 0).unwrap();
        let of_rank = hosts.iter().enumerate().flat_map(|(host, ranks)| vec![host; *ranks]).collect();
        let network = Network::of_links(of_rank, inside, outside);
        let columns =
            Columns::from([((1, 1), Ok(declaring((64, |_| {}), 4, &mut ChaCha8Rng::seed_from_u64(1), false)))]);
        let judge = Judge { rates: Rates::default(), ..judge(&columns, &cluster, &network, (2, None)) };
        let fixed = [
            ("dist.tensor_parallel_size", "1"),
            ("dist.expert_parallel_size", "1"),
            ("dist.pipeline_parallel_size", "2"),
            ("pipeline.num_micro_batch", "1"),
        ];
        search(&judge, &given(4, &[&fixed[..], options].concat()), 4).unwrap()
    };
    let (free, plain) = (found(vec![2, 2], &[]), found(vec![2, 2], &[("dist.order", "data,pipeline,tensor")]));
    assert_eq!(free.best().config().dist.order, RankOrder::PipelineDataTensor, "{free}");
    assert!(free.best().seconds() < plain.best().seconds() - 1.0, "{free} {plain}");
    // On one host all lie alike.
    let one = found(vec![4], &[]);
    assert!([one.best()].into_iter().chain(one.next()).all(|choice| !choice.words().contains("neighbours")), "{one}");
}

#[test]
fn a_layout_that_cannot_be_run_is_left_out_and_a_run_that_fails_is_named() {
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let found = || found_over(link, &[1.0; 2], (4, 8), &[]);
    let first = found().best().words().to_string();
    let mut runs = 0;
    let measured = found().measured(2, |_| {
        runs += 1;
        Ok(if runs == 1 { Err("too little".to_string()) } else { Ok(1.0) })
    });
    let measured = measured.unwrap();
    assert!(measured.best().measured() == Some(1.0) && measured.best().words() != first, "{measured}");
    assert!(measured.refused().contains(&(first.clone(), "auto.measure could not run it: too little".to_string())));
    let none = found().measured(2, |_| Ok(Err("too little".to_string()))).unwrap_err().to_string();
    assert!(none.contains("auto.measure = 2: none of the best layouts") && none.contains("too little"), "{none}");
    let failed = found().measured(1, |_| Err(crate::Error::invalid("a peer is gone"))).unwrap_err().to_string();
    assert!(failed.contains(&format!("runs {first}, and that failed: a peer is gone")), "{failed}");
}

#[test]
fn what_is_put_away_by_its_own_option_is_told() {
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let told = |options: &[(&str, &str)]| found_over(link, &[1.0; 2], (4, 8), options).best().to_string();
    assert!(told(&[("offload.optimizer_state", "host")]).contains("not counted: what moves between the device"));
    assert!(!told(&[]).contains("not counted: what moves"));
}

#[test]
fn an_update_in_host_memory_takes_what_it_takes_there() {
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let host_update = |seconds| Rates { update: 1.0, host_update: seconds, ..Rates::default() };
    let found = |rates: Rates, options: &[(&str, &str)]| {
        let found = found_with(rates, (link, &[2.0]), (4, 8), options);
        (found.best().time().update, found.best().to_string())
    };
    // Four layers of twelve elements, on a device twice as fast as the slowest one, which its host is not.
    let known = host_update(Some(5.0));
    let (seconds, told) = found(known, &[("offload.optimizer_state", "host")]);
    assert!(seconds == 240.0 && told.contains("but for what an update there brings over and back"), "{told}");
    assert_eq!(found(known, &[("offload.level", "v0")]).0, 240.0);
    assert_eq!(found(known, &[]).0, 24.0);
    // Where nobody measured it, the device's is taken, and that is told.
    let (seconds, told) = found(host_update(None), &[("offload.optimizer_state", "host")]);
    assert!(seconds == 24.0 && told.contains("an update there takes another time than on the device"), "{told}");
}

#[test]
fn what_has_no_effect_on_paper_is_refused() {
    let machine = crate::cost::Machine::from_toml(
        "[[host]]\ncount = 1\ndevices = [{ class = \"c\", count = 2 }]\ninside = { alpha_us = 1, gb_per_s = 1 }\n\
         outside = { alpha_us = 1, gb_per_s = 1 }\n[class.c]\nmemory_gb = 1\ntflops = 1\nmemory_gb_per_s = 1\n",
    );
    let task = super::PaperTask { rows: 2, dtype: burn::tensor::DType::F32, state: OptimizerState::PerElement(2) };
    for option in [("auto.measure", "2"), ("auto.calibration", "costs.json"), ("auto.speeds", "1,2")] {
        let given = given(2, &[option]);
        let told = super::search_on_paper(&given, machine.as_ref().unwrap(), &task, |_, _| Ok(Vec::new()));
        let told = told.unwrap_err().to_string();
        assert!(told.contains(option.0) && told.contains("leave it out"), "{told}");
    }
}
