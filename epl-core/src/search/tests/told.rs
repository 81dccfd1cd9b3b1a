//! What a search keeps of what is given, what it leaves out, and what it says.

use std::collections::BTreeSet;

use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::Tensor;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::{DrawnSegment, chain, column, column_of, declaring, device, found_over, given, judge, surveyed};
use crate::config::{Config, Layers, RankOrder};
use crate::cost::{ClusterDevices, Network, NetworkLink};
use crate::memory::OptimizerState;
use crate::search::column::Columns;
use crate::search::judge::Judge;
use crate::search::kept::Kept;
use crate::search::run::search;
use crate::search::space::{divisions, shapes};
use crate::topology::cluster::Cluster;
use crate::{Chain, Place, launch_dry};

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
        for key in crate::search::CHOSEN {
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
fn as_little_is_put_away_as_lets_something_fit() {
    let cluster = Cluster::local(1).unwrap();
    let link = NetworkLink { latency: 0.0, bandwidth: 1e12 };
    let network = Network::of_links(vec![0], link, link);
    let even = DrawnSegment { forward: 1.0, backward: 2.0, carry: 0.0, stored: 0.0 };
    let own = column_of(surveyed(&Config::new(), |at| chain(at, 4, false), 3), &[even; 4], true);
    let columns = Columns::from([((1, 1), Ok(own))]);
    let settings = |bytes: u64, options: &[(&str, &str)]| {
        let judge = judge(&columns, &cluster, &network, (1, Some(bytes)));
        let found = search(&judge, &given(1, options), 4);
        found.map_or("refused".to_string(), |found| {
            let settings = found.best().settings();
            let away = settings.lines().filter(|line| line.starts_with("offload")).collect::<Vec<_>>().join(", ");
            if away.is_empty() { "nothing".to_string() } else { away }
        })
    };
    // From little memory to much.
    let found = |options: &[(&str, &str)]| {
        let mut found: Vec<String> = (2..30).map(|size| settings(size * 50, options)).collect();
        found.dedup();
        found
    };
    let (all, state) = ("offload.level = \"v0\"", "offload.optimizer_state = \"host\"");
    assert_eq!(found(&[]), ["refused", all, state, "nothing"]);
    // What is given stays, and the rest is chosen.
    assert_eq!(found(&[("offload.optimizer_state", "none")]), ["refused", all, "nothing"]);
    assert_eq!(found(&[("offload.parameters", "device")]), ["refused", all, state, "nothing"]);
    assert_eq!(found(&[("offload.optimizer_state", "device")]), ["refused", all, "nothing"]);
    assert_eq!(found(&[("offload.level", "")]), ["refused", "nothing"]);
}

#[test]
fn what_has_no_effect_on_paper_is_refused() {
    let machine = crate::cost::Machine::from_toml(
        "[[host]]\ncount = 1\ndevices = [{ class = \"c\", count = 2 }]\ninside = { alpha_us = 1, gb_per_s = 1 }\n\
         outside = { alpha_us = 1, gb_per_s = 1 }\n[class.c]\nmemory_gb = 1\ntflops = 1\nmemory_gb_per_s = 1\n",
    );
    let task =
        crate::search::PaperTask { rows: 2, dtype: burn::tensor::DType::F32, state: OptimizerState::PerElement(2) };
    for option in [("auto.measure", "2"), ("auto.calibration", "costs.json"), ("auto.speeds", "1,2")] {
        let given = given(2, &[option]);
        let told = crate::search::search_on_paper(&given, machine.as_ref().unwrap(), &task, |_, _| Ok(Vec::new()));
        let told = told.unwrap_err().to_string();
        assert!(told.contains(option.0) && told.contains("leave it out"), "{told}");
    }
    let told = |segments: &dyn Fn(usize) -> Vec<crate::search::PaperSegment>| {
        let told = crate::search::search_on_paper(&given(2, &[]), machine.as_ref().unwrap(), &task, |tensor, _| {
            Ok(segments(tensor))
        });
        told.unwrap_err().to_string()
    };
    let segment = |flops: f64| crate::search::PaperSegment { name: "a".into(), flops, ..Default::default() };
    assert!(told(&|tensor| vec![segment(1.0); tensor]).contains("2 segments over 2 tensor and 1 expert ranks, and 1"));
    for flops in [f64::NAN, -1.0, f64::INFINITY] {
        let told = told(&|_| vec![segment(flops)]);
        assert!(told.contains(&format!("`a` has flops = {flops}")) && told.contains("from 0 on"), "{told}");
    }
}
