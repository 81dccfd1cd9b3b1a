//! What a run writes down of itself: the trace, and how long stages waited.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use epl_core::{Chain, Config, Engine, Error, MicroBatch, Place, launch};
use serde_json::Value;

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

type Model = Chain<Net, Tensor<2>, Tensor<2>>;

/// Four layers; each takes a while.
fn chain(at: &Place, each: Duration) -> Model {
    let layers = (0..4).map(|_| LinearConfig::new(3, 3).init(at)).collect();
    let layer = move |linear: &Linear, rows: Tensor<2>| {
        sleep(each);
        linear.forward(rows).tanh()
    };
    Chain::of(Net { layers })
        .first(&["layers.0"], move |net: &Net, rows: &Tensor<2>| layer(&net.layers[0], rows.clone()))
        .then(&["layers.1"], move |net, rows, _| layer(&net.layers[1], rows))
        .then(&["layers.2"], move |net, rows, _| layer(&net.layers[2], rows))
        .then(&["layers.3"], move |net, rows, _| layer(&net.layers[3], rows))
        .mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

/// Steps of two micro-batches over two stages and two replicas; the bubble of the last, and the plan's.
fn train(config: &Config, steps: u64, each: Duration, stop: Option<u64>) -> Result<(f64, f64), Error> {
    let ranks = launch(config, |epl| {
        let mut engine = Engine::build(&epl, |at| chain(at, each), &SgdConfig::new())?;
        let rows = || Tensor::full([1, 3], 0.5, epl.place().device());
        let first = 2 * epl.context().data().rank() as u64;
        for step in 0..steps {
            if stop == Some(step) && epl.context().world().rank() == 3 {
                return Err(Error::invalid("stopped"));
            }
            engine.step((first..first + 2).map(|sample| MicroBatch::new(rows(), [sample])).collect(), 0.1)?;
        }
        Ok((engine.bubble().unwrap(), engine.plan().expected_bubble().unwrap()))
    });
    ranks.map(|ranks| {
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "every rank is told the same");
        ranks[0]
    })
}

fn config(trace: &str) -> Config {
    let config = Config::new().with("dist.pipeline_parallel_size", 2).unwrap();
    let config = config.with("dist.data_parallel_size", 2).unwrap().with("profile.trace", trace).unwrap();
    config.with("profile.trace_skip", 1).unwrap().with("profile.trace_steps", 2).unwrap()
}

/// The events of a file.
fn read(path: &std::path::Path) -> Vec<Value> {
    let document: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    document["traceEvents"].as_array().unwrap().clone()
}

/// How many events of a rank have each name.
fn count(events: &[Value], rank: usize, name: &str) -> usize {
    events.iter().filter(|event| event["pid"] == rank && event["name"] == name).count()
}

#[test]
fn a_world_that_is_only_thought_of_writes_none() {
    let traced = epl_core::launch_dry(&config("a file"), 0, |epl| Ok(epl.config().profile.trace.clone()));
    assert_eq!(traced.unwrap().0, "");
}

#[test]
fn every_rank_tells_what_it_does_in_the_steps_that_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let mut config = config(path.to_str().unwrap());
    config.set("gradient_checkpoint.type", "collection").unwrap();
    config.gradient_checkpoint.kept = Some(vec!["layers.1".into()]);
    train(&config, 5, Duration::ZERO, None).unwrap();
    let events = read(&path);
    for rank in 0..4 {
        let segments = if rank % 2 == 0 { [0, 1] } else { [2, 3] };
        for (segment, micro_batch) in segments.iter().flat_map(|segment| [(segment, 0), (segment, 1)]) {
            for what in ["forward", "backward"] {
                let name = format!("{what} {micro_batch} segment {segment}");
                assert_eq!(count(&events, rank, &name), 2, "rank {rank}: {name} in two steps");
            }
            let again = format!("recompute {micro_batch} segment {segment}");
            assert_eq!(count(&events, rank, &again), if *segment == 3 { 0 } else { 2 }, "{again}");
        }
        let of_steps: Vec<usize> = (0..5).map(|step| count(&events, rank, &format!("update {}", step + 1))).collect();
        assert_eq!(of_steps, [0, 1, 1, 0, 0]);
        let sent = |name: &str| {
            events.iter().any(|event| event["pid"] == rank && event["name"].as_str().unwrap().starts_with(name))
        };
        assert!(sent("send") && sent("receive") && sent("all_reduce"));
        let processes = events.iter().find(|event| event["name"] == "process_name" && event["pid"] == rank);
        let name = processes.unwrap()["args"]["name"].as_str().unwrap().to_string();
        assert!(
            name.contains(&format!("pipeline {}", rank % 2)) && name.contains(&format!("data {}", rank / 2)),
            "{name}"
        );
    }
    let categories: BTreeSet<&str> = events.iter().filter_map(|event| event["cat"].as_str()).collect();
    assert!(
        categories.is_superset(&["forward", "backward", "recompute", "update", "collective"].into()),
        "{categories:?}"
    );
}

#[test]
fn a_run_that_fails_leaves_its_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    let error = train(&config(path.to_str().unwrap()), 5, Duration::ZERO, Some(2)).unwrap_err().to_string();
    assert!(error.contains("stopped"), "{error}");
    assert_eq!(count(&read(&path), 0, "update 2"), 1);
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_the_first_step() {
    let error =
        train(&config("/no/such/folder/trace.json"), 1, Duration::from_secs(1000), None).unwrap_err().to_string();
    assert!(error.contains("/no/such/folder/trace.json"), "{error}");
}

#[test]
fn stages_that_wait_are_seen() {
    let config = Config::new().with("dist.pipeline_parallel_size", 2).unwrap();
    let config = config.with("dist.data_parallel_size", 2).unwrap().with("pipeline.num_micro_batch", 2).unwrap();
    let (each, begun) = (0.02, Instant::now());
    let (bubble, expected) = train(&config, 1, Duration::from_secs_f64(each), None).unwrap();
    let most = begun.elapsed().as_secs_f64();
    // Two stages and two micro-batches: one of three slots each.
    assert!((expected - 1.0 / 3.0).abs() < 1e-9, "{expected}");
    // However slow the machine is: the second stage waits for a forward of two layers, and each is at work for two.
    let (least_idle, least_busy) = (2.0 * each / (2.0 * most), 2.0 * 4.0 * each / (2.0 * most));
    assert!(bubble >= least_idle && bubble <= 1.0 - least_busy, "{bubble} in {most} s");
}
