//! What layouts take, where that can be said by hand.

use burn::optim::AdamWConfig;
use burn::tensor::{DType, Tensor};
use epl_comm::{Operation, ReduceOp};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{chain, column, declaring, found_over, found_with, given, judge};
use crate::config::{Config, Layers, OffloadLevel, PipelineStrategy, RankOrder, ZeroLevel};
use crate::cost::{HostUpdates, Line, Network, NetworkLink, Rates, SegmentTime};
use crate::memory::OptimizerState;
use crate::plan::Plan;
use crate::search::candidate::{Candidate, PutAway, Shape};
use crate::search::column::{Column, Columns};
use crate::search::draft::Drafts;
use crate::search::judge::Judge;
use crate::search::run::search;
use crate::simulate::{Called, Members, StepProgram, StepShapes};
use crate::topology::cluster::{Axis, Cluster};
use crate::{Place, launch_dry};

/// A sum that a layer makes over the ranks which divide it.
fn call_over_tensor() -> Called {
    let operation = Operation::AllReduce(ReduceOp::Sum);
    Called { over: Members::Axis(Axis::Tensor), operation, dtype: DType::F32, elements: 8 }
}

#[test]
fn links_count_where_they_are() {
    // Two hosts of two, of which the one has slow links: layers that call over tensor ranks are there as slow.
    let fast = NetworkLink { latency: 1e-6, bandwidth: 1e9 };
    let slow = NetworkLink { latency: 1.0, bandwidth: 1e3 };
    let outside = NetworkLink { latency: 1e-3, bandwidth: 1e6 };
    let (cluster, mut numbers) = (Cluster::new(vec![2, 2], 0).unwrap(), ChaCha8Rng::seed_from_u64(2));
    let mut own = column(4, &mut numbers, false);
    own.shapes = own.shapes.with_forward_call(0, call_over_tensor());
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

/// Two hosts of six, and four ranks that divide layers: one group of three lies on both hosts, and is waited for, whether they are
/// replicas or stages.
#[test]
fn a_group_that_lies_on_more_hosts_than_others_counts() {
    let (inside, outside) =
        (NetworkLink { latency: 1e-6, bandwidth: 1e9 }, NetworkLink { latency: 1.0, bandwidth: 1e9 });
    let seconds = |axis: &'static str, calls: usize| {
        let cluster = Cluster::new(vec![6, 6], 0).unwrap();
        let mut own = column(6, &mut ChaCha8Rng::seed_from_u64(2), false);
        for segment in 0..calls {
            own.shapes = own.shapes.with_forward_call(segment, call_over_tensor());
        }
        let columns = Columns::from([((4, 1), Ok(own))]);
        let network = Network::of_hosts([[0; 6], [1; 6]].concat(), vec![[inside, outside]; 2]);
        let options = [("dist.tensor_parallel_size", "4"), ("pipeline.num_micro_batch", "1"), (axis, "3")];
        let config = Config { auto: Config::default().auto, ..given(12, &options) };
        let judge = Judge { rates: Rates::default(), ..judge(&columns, &cluster, &network, (12, None)) };
        judge.judge(&config).unwrap().seconds
    };
    // A sum from one host to another takes four seconds; a stage has two segments of six.
    for (axis, sums) in [("dist.data_parallel_size", 6.0), ("dist.pipeline_parallel_size", 2.0)] {
        let more = seconds(axis, 6) - seconds(axis, 0);
        assert!((more - 4.0 * sums).abs() < 0.01, "{axis}: {more}");
    }
}

/// Four segments that send over two tensor ranks, or take half as long again and send nothing.
#[test]
fn layers_are_whole_where_sending_takes_longer() {
    let cluster = Cluster::local(2).unwrap();
    let even = |seconds: f64| {
        let line = |seconds: f64| Line::through([(1.0, seconds)]);
        SegmentTime { forward: line(seconds), backward: line(2.0 * seconds), untracked: line(seconds) }
    };
    let Column { mut builder, mut shapes, .. } = column(4, &mut ChaCha8Rng::seed_from_u64(1), false);
    let whole = {
        let mut builder = builder.clone();
        builder.config.dist.whole_layers = Some(vec!["layers.*.mlp".to_string()]);
        Column::new(builder, vec![even(1.5); 4], shapes.clone(), None)
    };
    for segment in 0..4 {
        shapes = shapes.with_forward_call(segment, call_over_tensor());
    }
    builder.config.dist.whole_layers = None;
    let mut own = Column::new(builder, vec![even(1.0); 4], shapes, None);
    own.with_whole_layers = Some(Box::new(whole));
    let columns = Columns::from([((2, 1), Ok(own))]);
    for (latency, is_whole) in [(0.1, false), (10.0, true)] {
        let link = NetworkLink { latency, bandwidth: 1e12 };
        let network = Network::of_links(vec![0; 2], link, link);
        let judge = Judge { rates: Rates::default(), ..judge(&columns, &cluster, &network, (1, None)) };
        let options = given(2, &[("dist.tensor_parallel_size", "2")]);
        let found = search(&judge, &options, 4).unwrap();
        let best = found.best();
        assert_eq!(best.settings().contains("dist.whole_layers = [\"layers.*.mlp\"]"), is_whole, "{found}");
        // A sum of two ranks takes the latency twice, that of the report, too.
        let segment = if is_whole { 4.5 } else { 3.0 + 2.0 * latency };
        assert!((best.seconds() - 4.0 * segment - 2.0 * latency).abs() < 1e-6, "{found}");
        assert_eq!(judge.judge(best.config()).unwrap().seconds, best.seconds());
        let others = best.config().clone().with("dist.whole_layers", Some(vec!["others".to_string()])).unwrap();
        let refused = judge.judge(&others).unwrap_err().to_string();
        assert!(
            refused.contains("dist.whole_layers = [\"others\"], and these costs were measured with none"),
            "{refused}"
        );
    }
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
        has_whole_layers: false,
    };
    let cuts = if stages > 1 { vec![2] } else { Vec::new() };
    let level = (ZeroLevel::Off, PutAway::Offload(OffloadLevel::Off));
    let candidate = Candidate { shape, level, row_weights: None, whole_layers: None, cuts, runs: runs.to_vec() };
    judge.judge(&candidate.config(&given(data * stages, &[])).unwrap()).unwrap().seconds
}

/// Two and four stages, between which carries take as long as a stage: micro-batches come back in waves.
#[test]
fn what_many_micro_batches_take_follows_from_whole_waves() {
    for (stages, strategy) in [2, 4].into_iter().flat_map(|stages| {
        use PipelineStrategy::{PreferBackward, PreferBackwardOptimizer, PreferForward};
        [PreferBackward, PreferBackwardOptimizer, PreferForward].map(|strategy| (stages, strategy))
    }) {
        let cluster = Cluster::local(stages).unwrap();
        let link = NetworkLink { latency: 6.0 / stages as f64, bandwidth: 1e12 };
        let network = Network::of_links(vec![0; stages], link, link);
        let Column { builder, shapes, .. } = column(4, &mut ChaCha8Rng::seed_from_u64(1), false);
        let line = |seconds: f64| Line::through([(1.0, seconds)]);
        let even = SegmentTime { forward: line(1.0), backward: line(2.0), untracked: line(1.0) };
        let columns = Columns::from([((1, 1), Ok(Column::new(builder, vec![even; 4], shapes, None)))]);
        let judge = Judge { rates: Rates::default(), ..judge(&columns, &cluster, &network, (64, None)) };
        let given = given(stages, &[]);
        let shape = Shape {
            sizes: [1, stages, 1, 1],
            micro_batches: 64,
            chunks: 1,
            strategy,
            order: RankOrder::DataPipelineTensor,
            by_speed: false,
            has_whole_layers: false,
        };
        let level = (ZeroLevel::Off, PutAway::Offload(OffloadLevel::Off));
        let cuts = (1..stages).map(|stage| 4 / stages * stage).collect();
        let candidate = Candidate { shape, level, row_weights: None, whole_layers: None, cuts, runs: Vec::new() };
        let config = candidate.config(&given).unwrap();
        let [few, all] = [judge.judge(&config), judge.judge_all(&config)].map(|judged| judged.unwrap().seconds);
        let drafts = Drafts::new(&judge, &given);
        let bound = drafts.bound(&shape, &drafts.least(&shape).unwrap()).unwrap();
        assert!((few / all - 1.0).abs() < 0.1, "{stages} stages, {strategy}: {few} for {all}");
        assert!(bound <= few, "{stages} stages, {strategy}: {few} is below {bound}");
    }
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
    // Of two stages with one micro-batch each computes while the other one waits, and of replicas none does.
    let (whole, spared) = (of((1, 2), 0.0), of((1, 2), 0.2));
    assert!((spared / whole - 0.8).abs() < 1e-3, "{spared} of {whole}");
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
fn an_update_in_host_memory_takes_what_it_takes_there() {
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let host_update = |of_state: Option<f64>| {
        let host_updates = HostUpdates { of_state, of_more: of_state.map(|seconds| 2.0 * seconds) };
        Rates { update: 1.0, host_updates, ..Rates::default() }
    };
    let found = |rates: Rates, options: &[(&str, &str)]| {
        let found = found_with(rates, (link, &[2.0]), (4, 8), options);
        (found.best().time().update, found.best().to_string())
    };
    // Four layers of twelve elements, on a device twice as fast as the slowest one, which its host is not.
    let known = host_update(Some(5.0));
    let (seconds, told) = found(known, &[("offload.optimizer_state", "host")]);
    assert!(seconds == 240.0 && told.contains("but for what an update there brings over and back"), "{told}");
    assert_eq!(found(known, &[("offload.level", "v0")]).0, 480.0);
    assert_eq!(found(known, &[]).0, 24.0);
    // Where nobody measured it, the device's is taken, and that is told.
    let (seconds, told) = found(host_update(None), &[("offload.optimizer_state", "host")]);
    assert!(seconds == 24.0 && told.contains("an update there takes another time than on the device"), "{told}");
}
