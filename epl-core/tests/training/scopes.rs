//! Scopes around the parts of a model: the layouts that follow, literally, and what is refused.

#![allow(clippy::unwrap_used)]

use burn::module::{Module, Param};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::Tensor;
use epl_core::Axis;
use epl_core::topology::cluster::{Cluster, RankOrder};
use epl_core::topology::layout::{Arrangement, StrategyKind, TaskGraph};
use epl_core::{Config, Epl, Error, Layout, Place, Result, Strategy, WithLoss, launch_dry};

/// A layer that a `split` scope cuts.
#[derive(Module, Debug)]
struct Cut {
    weight: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
struct Two {
    first: Cut,
    second: Cut,
}

fn cut(at: &Place) -> Cut {
    // Made where its rows have been gathered, so that it may be colocated with a replicated part.
    at.behind_bridge(|at| Cut { weight: at.split_param([3, 8], &[(Axis::Tensor, 1)], Initializer::Zeros) })
}

/// A layer of Burn, which nobody cuts.
fn linear(at: &Place) -> Linear {
    LinearConfig::new(3, 3).init(at)
}

fn config(ranks: usize, colocated: bool) -> Config {
    let config = Config::new().with("cluster.ranks", ranks).unwrap();
    config.with("cluster.colocate_split_and_replicate", colocated).unwrap()
}

/// The layout of a model, seen from its last rank.
fn layout<M: Module>(config: &Config, model: impl Fn(&Place) -> M) -> Result<String> {
    let last = config.cluster.ranks.unwrap() - 1;
    let (layout, _) = launch_dry(config, last, |epl| epl.layout(&model))?;
    Ok(layout.unwrap().to_string())
}

fn first_and_second(first: Strategy, second: Strategy) -> impl Fn(&Place) -> Two {
    move |at| Two { first: at.scope(first.clone(), cut), second: at.scope(second.clone(), cut) }
}

#[test]
fn one_replicate_is_data_parallelism() {
    let plan = layout(&config(8, false), |at| at.replicate(1, linear)).unwrap();
    assert_eq!(plan, "8 ranks = 8 replicas\n  `0` replicate(1)  [0] [1] [2] [3] [4] [5] [6] [7]");
}

#[test]
fn replicate_on_two_devices_halves_the_number_of_replicas() {
    let plan = layout(&config(4, false), |at| at.replicate(2, linear)).unwrap();
    assert_eq!(plan, "4 ranks = 2 replicas\n  `0` replicate(2)  [0 1] [2 3]");
}

#[test]
fn two_replicates_are_two_stages() {
    let net = first_and_second(Strategy::replicate(1).named("encoder"), Strategy::replicate(1).named("decoder"));
    assert_eq!(
        layout(&config(8, false), &net).unwrap(),
        "8 ranks = 4 replicas × 2 stages\n  \
         `encoder` replicate(1)  [0] [2] [4] [6]\n  \
         `decoder` replicate(1)  [1] [3] [5] [7]"
    );
    let libai = config(8, false).with("dist.order", "pipeline,data,tensor").unwrap();
    assert_eq!(
        layout(&libai, &net).unwrap(),
        "8 ranks = 4 replicas × 2 stages\n  \
         `encoder` replicate(1)  [0] [1] [2] [3]\n  \
         `decoder` replicate(1)  [4] [5] [6] [7]"
    );
}

#[test]
fn data_parallelism_is_wrapped_around_a_split() {
    let plan = layout(&config(16, false), |at| at.split(8, cut)).unwrap();
    let ranks = "[0 1 2 3 4 5 6 7] [8 9 10 11 12 13 14 15]";
    assert_eq!(plan, format!("16 ranks = 2 replicas\n  `0` split(8)  {ranks}"));
}

#[test]
fn replicate_and_split_stand_side_by_side() {
    let net = first_and_second(Strategy::replicate(8).named("backbone"), Strategy::split(8).named("head"));
    assert_eq!(
        layout(&config(16, false), &net).unwrap(),
        "16 ranks = 1 replica × 2 stages\n  \
         `backbone` replicate(8)  [0 1 2 3 4 5 6 7]\n  \
         `head` split(8)          [8 9 10 11 12 13 14 15]"
    );
}

#[test]
fn replicate_and_split_share_their_devices() {
    let net = first_and_second(Strategy::replicate(8).named("backbone"), Strategy::split(8).named("head"));
    assert_eq!(
        layout(&config(8, true), &net).unwrap(),
        "8 ranks = 1 replica, task graphs colocated\n  \
         `backbone` replicate(8)  [0 1 2 3 4 5 6 7]\n  \
         `head` split(8)          [0 1 2 3 4 5 6 7]"
    );
    assert_eq!(
        layout(&config(16, true), &net).unwrap(),
        "16 ranks = 2 replicas, task graphs colocated\n  \
         `backbone` replicate(8)  [0 1 2 3 4 5 6 7] [8 9 10 11 12 13 14 15]\n  \
         `head` split(8)          [0 1 2 3 4 5 6 7] [8 9 10 11 12 13 14 15]"
    );
}

/// EPL's mixture of experts: everything replicated by default, experts in a split scope.
#[test]
fn a_default_strategy_takes_what_is_in_no_scope() {
    let net = |at: &Place, total: usize| {
        at.default_strategy(Strategy::replicate(total), |at| Two { first: cut(at), second: at.split(total, cut) })
    };
    let total = |epl: &Epl| epl.cluster().total_gpu_num();
    let (layout, _) = launch_dry(&config(4, true), 0, |epl| epl.layout(|at| net(at, total(&epl)))).unwrap();
    assert_eq!(
        layout.unwrap().to_string(),
        "4 ranks = 1 replica, task graphs colocated\n  `0` replicate(4)  [0 1 2 3]\n  `1` split(4)      [0 1 2 3]"
    );
}

/// EPL's way to two stages: a second default strategy.
#[test]
fn a_second_default_strategy_is_another_task_graph() {
    let part = |at: &Place| at.default_strategy(Strategy::replicate(1), cut);
    let plan = layout(&config(4, false), |at| Two { first: part(at), second: part(at) }).unwrap();
    assert_eq!(plan, "4 ranks = 2 replicas × 2 stages\n  `0` replicate(1)  [0] [2]\n  `1` replicate(1)  [1] [3]");
    // One in which nothing was made takes no device.
    let plan = layout(&config(4, false), |at| at.default_strategy(Strategy::split(2), |at| at.replicate(1, linear)));
    assert_eq!(plan.unwrap(), "4 ranks = 4 replicas\n  `1` replicate(1)  [0] [1] [2] [3]");
}

#[test]
fn scopes_and_the_number_of_stages_must_agree() {
    let mut told = config(2, false);
    told.dist.pipeline_parallel_size = 2;
    let one = launch_dry(&told, 0, |epl| epl.layout(|at| at.default_strategy(Strategy::replicate(1), linear)));
    let error = one.unwrap_err().to_string();
    assert!(error.contains("dist.pipeline_parallel_size = 2") && error.contains("pipeline"), "{error}");
    let two = first_and_second(Strategy::replicate(1), Strategy::replicate(1));
    assert!(layout(&told, &two).is_ok());
}

#[test]
fn both_orders_of_ranks_across_two_workers() {
    let graph = |name: &str| TaskGraph { name: name.to_string(), kind: StrategyKind::Replicate, devices: 1 };
    let graphs = vec![graph("a"), graph("b")];
    let cluster = Cluster::new(vec![4, 4], 0).unwrap();
    let plan = |order, prefer_intra_node| {
        let arrangement = Arrangement { colocated: false, order, prefer_intra_node };
        Layout::new(graphs.clone(), &cluster, arrangement).unwrap().to_string()
    };
    let head = "8 ranks = 4 replicas × 2 stages\n";
    for (order, intra, a, b) in [
        (RankOrder::DataPipelineTensor, true, "[0] [2] [4] [6]", "[1] [3] [5] [7]"),
        (RankOrder::DataPipelineTensor, false, "[0] [1] [2] [3]", "[4] [5] [6] [7]"),
        (RankOrder::PipelineDataTensor, true, "[0] [1] [2] [3]", "[4] [5] [6] [7]"),
        (RankOrder::PipelineDataTensor, false, "[0] [4] [1] [5]", "[2] [6] [3] [7]"),
    ] {
        let expected = format!("{head}  `a` replicate(1)  {a}\n  `b` replicate(1)  {b}");
        assert_eq!(plan(order, intra), expected, "{order:?}, intra node {intra}");
    }
}

/// The mesh of a layout agrees with its placement.
#[test]
fn the_mesh_is_the_placement() {
    for (colocated, first, second, ranks, sizes) in [
        (false, Strategy::replicate(1), Strategy::replicate(1), 8, [4, 2, 1, 1]),
        (false, Strategy::split(2), Strategy::split(2), 8, [2, 2, 2, 1]),
        (true, Strategy::replicate(4), Strategy::split(4), 8, [8, 1, 1, 4]),
        (true, Strategy::split(4), Strategy::split(4), 8, [2, 1, 4, 1]),
        (true, Strategy::replicate(4), Strategy::replicate(4), 8, [8, 1, 1, 1]),
    ] {
        let net = first_and_second(first, second);
        let (layout, _) = launch_dry(&config(ranks, colocated), 0, |epl| epl.layout(&net)).unwrap();
        let layout = layout.unwrap();
        let mesh = layout.mesh();
        let axes = [Axis::Data, Axis::Pipeline, Axis::Tensor, Axis::Expert];
        assert_eq!(axes.map(|axis| mesh.size(axis)), sizes, "{layout}");
        for replica in 0..layout.replicas() {
            for graph in 0..layout.task_graphs().len() {
                let together = layout.ranks(replica, graph);
                let axis = if sizes[3] > 1 { Axis::Expert } else { Axis::Tensor };
                // Of `replicate` alone the mesh has no axis.
                assert!(sizes[2] * sizes[3] == 1 || mesh.group(axis, together[0]) == together, "{layout}\n{mesh}");
                assert_eq!(mesh.coordinate(together[0]).pipeline, if sizes[1] > 1 { graph } else { 0 }, "{mesh}");
            }
        }
    }
}

/// Stages of several devices: their ranks are those of the placement, and so are the groups.
#[test]
fn the_mesh_of_wide_stages_is_the_placement() {
    use epl_core::Axis::{Data, Pipeline, Tensor};
    let mesh = |first: Strategy, second: Strategy, ranks: usize, order: &str| {
        let config = config(ranks, false).with("dist.order", order).unwrap();
        let net = first_and_second(first, second);
        launch_dry(&config, 0, |epl| epl.layout(&net)).unwrap().0.unwrap().mesh().clone()
    };
    let (epl, libai) = ("data,pipeline,tensor", "pipeline,data,tensor");
    // One width: a device has one counterpart in each stage.
    let even = mesh(Strategy::replicate(2), Strategy::replicate(2), 8, epl);
    assert!(!even.is_bridged());
    assert_eq!(even.groups(Data), [[0, 1, 4, 5], [2, 3, 6, 7]]);
    assert_eq!(even.groups(Pipeline), [[0, 2], [1, 3], [4, 6], [5, 7]]);
    assert_eq!((even.replicas(), even.device(5)), (4, (0, 1)));
    let even = mesh(Strategy::replicate(2), Strategy::replicate(2), 8, libai);
    assert_eq!(even.groups(Data), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    // Two: a replica is one group.
    let wide = mesh(Strategy::replicate(2), Strategy::split(2), 8, epl);
    assert!(wide.is_bridged());
    assert_eq!(wide.groups(Data), [vec![0, 1, 4, 5], vec![2, 6], vec![3, 7]]);
    assert_eq!(wide.groups(Tensor), [vec![0], vec![1], vec![4], vec![5], vec![2, 3], vec![6, 7]]);
    assert_eq!(wide.groups(Pipeline), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert_eq!((wide.stages(), wide.replicas(), wide.size(Data), wide.size(Pipeline)), (2, 2, 4, 4));
    assert_eq!(
        [0, 1, 3, 5, 6].map(|rank| (wide.replica(rank), wide.device(rank))),
        [(0, (0, 2)), (0, (1, 2)), (0, (0, 1)), (1, (1, 2)), (1, (0, 1))]
    );
    let wide = mesh(Strategy::replicate(2), Strategy::replicate(1), 6, libai);
    assert_eq!(wide.groups(Data), [vec![0, 1, 2, 3], vec![4, 5]]);
    assert_eq!(wide.groups(Pipeline), [[0, 1, 4], [2, 3, 5]]);
    for rank in 0..6 {
        let (at, own) = (wide.coordinate(rank), wide.group(Data, rank));
        assert_eq!((at.pipeline, own[at.data]), (usize::from(rank > 3), rank));
    }
}

/// A configuration, a model in scopes, and what is said of both.
type Refused = (Config, Box<dyn Fn(&Place) -> Two>, &'static str);

fn refusal(config: &Config, model: impl Fn(&Place) -> Two) -> String {
    layout(config, model).unwrap_err().to_string()
}

#[test]
fn what_cannot_be_laid_out_is_refused_with_both_numbers() {
    let named = |first: Strategy, second: Strategy| first_and_second(first.named("body"), second.named("head"));
    let cases: [Refused; 6] = [
        (
            config(12, false),
            Box::new(named(Strategy::replicate(8), Strategy::split(8))),
            "`body` replicate(8) and `head` split(8) need 16 devices a replica, and 12 ranks do not divide by that; \
             use 16 ranks, or set cluster.colocate_split_and_replicate = true",
        ),
        (
            config(12, true),
            Box::new(named(Strategy::replicate(8), Strategy::split(8))),
            "`body` replicate(8) and `head` split(8) need 8 devices a replica, colocated, and 12 ranks do not divide \
             by that; use 8 or 16 ranks",
        ),
        (
            config(8, true),
            Box::new(named(Strategy::replicate(8), Strategy::split(4))),
            "`body` replicate(8) and `head` split(4) are colocated, and colocated task graphs share all their devices; \
             give both 8 devices",
        ),
        (
            config(8, false),
            Box::new(named(Strategy::replicate(0), Strategy::split(4))),
            "`body` replicate(0) is a task graph on 0 devices; give it at least 1",
        ),
        (
            config(8, false),
            Box::new(first_and_second(Strategy::replicate(1).named("part"), Strategy::split(4).named("part"))),
            "two scopes are named `part`; give each its own name, or none",
        ),
        (
            config(8, true).with("dist.tensor_parallel_size", 2).unwrap(),
            Box::new(named(Strategy::replicate(4), Strategy::split(4))),
            "the scopes make tensor 1, but dist.tensor_parallel_size = 2; leave the option out, or change the scopes",
        ),
    ];
    for (config, model, expected) in cases {
        assert_eq!(refusal(&config, model), expected);
    }
}

#[test]
fn a_scope_in_a_scope_is_refused_with_both_names() {
    let nested = |at: &Place| {
        at.scope(Strategy::replicate(2).named("outer"), |at| at.scope(Strategy::split(2).named("inner"), linear))
    };
    let error = layout(&config(2, false), nested).unwrap_err().to_string();
    assert_eq!(
        error,
        "scope `inner` split(2) is opened inside scope `outer` replicate(2); strategies do not nest: close the outer \
         one first"
    );
}

fn build(config: &Config, model: impl Fn(&Place) -> Two) -> Error {
    launch_dry(config, 0, |epl| {
        epl.build(|at| WithLoss::new(model(at), |_: &Two, _: &()| unreachable!("nothing is run"))).map(|_| ())
    })
    .unwrap_err()
}

#[test]
fn a_parameter_outside_all_scopes_is_named() {
    let error = build(&config(2, false), |at| Two { first: at.replicate(1, cut), second: cut(at) });
    assert!(error.to_string().starts_with("parameter `second.weight`: is in no scope, and others are"), "{error}");
}

#[test]
fn stages_of_one_segment_are_refused() {
    let error = build(&config(2, false), first_and_second(Strategy::replicate(1), Strategy::replicate(1)));
    let said = error.to_string();
    let expected = "segment 0 uses `first.weight` of task graph `0` and `second.weight` of task graph `1`";
    assert!(said.starts_with(expected), "{said}");
}

/// Each device of the scope would hold all of it, and run the same rows, where a slice of the work was asked for.
#[test]
fn a_split_scope_in_which_nothing_is_cut_is_refused_by_name() {
    #[derive(Module, Debug)]
    struct Normed {
        norm: LayerNorm,
        cut: Cut,
    }
    let head = || Strategy::split(4).named("head");
    for colocated in [false, true] {
        let plan = layout(&config(4, colocated), |at| at.scope(head(), linear));
        let error = plan.unwrap_err().to_string();
        assert!(error.starts_with("`head` split(4): none of its parameters is cut"), "{error}");
        assert!(error.contains("each of the 4 devices would hold all of them"), "{error}");
        assert!(error.contains("epl-modules") && error.contains("replicate(4)"), "{error}");
    }
    let default = layout(&config(4, false), |at| at.default_strategy(head(), linear));
    assert!(default.unwrap_err().to_string().contains("`head` split(4)"));
    // What is not cut may stand beside what is; what has no parameters has nothing to be cut; one device holds all anyway.
    let normed = |at: &Place| Normed { norm: LayerNormConfig::new(3).init(at), cut: cut(at) };
    assert!(layout(&config(4, false), |at| at.scope(head(), normed)).is_ok());
    assert!(layout(&config(2, false), |at| at.split(1, linear)).is_ok());
    let none = |at: &Place| (at.split(2, cut), at.split(2, |_| burn::nn::Relu::new()));
    assert!(layout(&config(4, false), none).is_ok());
}

/// A split layer without a bridge would multiply rows of one rank with the classes of another.
#[test]
fn a_divided_parameter_needs_its_rows_gathered() {
    #[derive(Module, Debug)]
    struct Net {
        body: Linear,
        head: burn::module::Param<burn::tensor::Tensor<2>>,
    }
    let error = launch_dry(&config(2, true), 0, |epl| {
        epl.layout(|at| Net {
            body: at.replicate(2, linear),
            head: at.split(2, |at| at.child("head").split_param([3, 4], &[(Axis::Tensor, 1)], Initializer::Zeros)),
        })
        .map(|_| ())?;
        epl.build(|at| {
            let net = Net {
                body: at.replicate(2, linear),
                head: at.split(2, |at| at.child("head").split_param([3, 4], &[(Axis::Tensor, 1)], Initializer::Zeros)),
            };
            WithLoss::new(net, |_: &Net, _: &()| unreachable!("nothing is run"))
        })
        .map(|_| ())
    })
    .unwrap_err();
    assert!(
        error.to_string().contains("head: a `split` scope is colocated with replicated parts on 2 ranks"),
        "{error}"
    );
}
