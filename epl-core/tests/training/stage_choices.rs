//! The ways to say which stage runs what, and in which order.
#![allow(clippy::unwrap_used)]

use std::fs;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use epl_core::config::Layers;
use epl_core::plan::Order;
use epl_core::schedule::Schedule;
use epl_core::{Chain, Config, Engine, Error, MicroBatch, Place, Plan, launch};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
    head: Linear,
}

type Model = Chain<Net, Tensor<2>, Tensor<2>>;

const LAYERS: usize = 5;

/// Five layers and a head, each a segment; `number` says of which layer each is.
fn chain(at: &Place, number: impl Fn(usize) -> Option<isize>) -> Model {
    let linear = |at: &Place| LinearConfig::new(3, 3).init(at);
    let layer = |index| match number(index) {
        Some(number) => at.with_layer_idx(number, linear),
        None => linear(at),
    };
    let net = Net { layers: (0..LAYERS).map(layer).collect(), head: layer(LAYERS) };
    let first = Chain::of(net).first(&["layers.0"], |net: &Net, rows: &Tensor<2>| net.layers[0].forward(rows.clone()));
    let layers = (1..LAYERS).fold(first, |chain, index| {
        chain.then(&[&format!("layers.{index}")], move |net, rows, _| net.layers[index].forward(rows).tanh())
    });
    layers.then(&["head"], |net, rows, _| net.head.forward(rows)).mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

fn config(options: &[(&str, &str)]) -> Result<Config, Error> {
    let said = options.iter().map(|(key, value)| format!("{key}={value}"));
    Ok(Layers::new().command_line(said)?.resolve()?)
}

/// The plan of the first rank.
fn plan(options: &[(&str, &str)], number: impl Fn(usize) -> Option<isize> + Sync) -> Result<Plan, Error> {
    let plans = launch(&config(options)?, |epl| Ok(epl.build(|at| chain(at, &number))?.plan().clone()));
    plans.map(|mut plans| plans.swap_remove(0))
}

const TWO: (&str, &str) = ("dist.pipeline_parallel_size", "2");
const THREE: (&str, &str) = ("dist.pipeline_parallel_size", "3");
const NONE: fn(usize) -> Option<isize> = |_| None;
/// As LiBai numbers them: the head is on the last stage.
const NUMBERED: fn(usize) -> Option<isize> = |index| Some(if index < LAYERS { index as isize } else { -1 });

#[test]
fn layers_by_their_numbers() {
    // 5 layers on 2 stages: the last one takes one more.
    assert_eq!(plan(&[TWO], NUMBERED).unwrap().stages.parts(), [0..2, 2..6]);
    assert_eq!(plan(&[THREE], NUMBERED).unwrap().stages.parts(), [0..1, 1..3, 3..6]);
    // Of eight layers, only five of which are here.
    assert_eq!(plan(&[TWO, ("dist.pipeline_num_layers", "8")], NUMBERED).unwrap().stages.parts(), [0..4, 4..6]);
    // The stage of each layer, not of each segment.
    let given = ("dist.custom_pipeline_stage_id", "0,0,0,0,1");
    assert_eq!(plan(&[TWO, given], NUMBERED).unwrap().stages.parts(), [0..4, 4..6]);
    // Two segments of one layer, and one without a number goes with the one before it.
    let pairs = |index: usize| (index != 1).then_some(index as isize / 2);
    assert_eq!(plan(&[THREE], pairs).unwrap().stages.parts(), [0..2, 2..4, 4..6]);
    // One stage runs them all.
    assert_eq!(plan(&[], NUMBERED).unwrap().stages.count(), 1);
    assert_eq!(plan(&[TWO], NUMBERED).unwrap().record("layers.3.weight").unwrap().layer_idx, Some(3));
}

#[test]
fn segments_are_the_layers_where_none_is_numbered() {
    assert_eq!(plan(&[TWO, ("dist.pipeline_num_layers", "6")], NONE).unwrap().stages.parts(), [0..3, 3..6]);
    let error = plan(&[TWO, ("dist.pipeline_num_layers", "12")], NONE).unwrap_err().to_string();
    assert!(error.contains("for 12 layers") && error.contains("6 segments"), "{error}");
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let refused = |options: &[(&str, &str)], number: fn(usize) -> Option<isize>| {
        plan(options, number).map(|plan| plan.stages).unwrap_err().to_string()
    };
    let error = refused(&[TWO, ("dist.pipeline_num_layers", "4")], NUMBERED);
    assert!(error.contains("numbers a layer 4") && error.contains("4 layers"), "{error}");
    let error = refused(&[TWO, ("dist.pipeline_num_layers", "4"), ("dist.custom_pipeline_stage_id", "0,1")], NUMBERED);
    assert!(error.contains("pipeline_num_layers = 4") && error.contains("2 layers"), "{error}");
    let error = refused(&[TWO], |index| Some(5 - index as isize));
    assert!(error.contains("2 pipeline stages"), "{error}");
    let error = refused(&[TWO], |_| Some(-2));
    assert!(error.contains("layer -2"), "{error}");
    let error = refused(&[THREE, ("dist.pipeline_num_layers", "2")], |_| Some(0));
    assert!(error.contains("2 layers cannot fill 3 stages"), "{error}");
}

#[test]
fn a_number_of_stages_that_are_chosen() {
    let auto = ("auto.auto_parallel", "true");
    let chosen = plan(&[auto, ("pipeline.num_stages", "3"), ("cluster.ranks", "6")], NONE).unwrap();
    assert_eq!((chosen.stages.parts(), chosen.mesh.size(epl_core::Axis::Data)), (&[0..2, 2..4, 4..6][..], 2));
    // Both names may say it.
    assert_eq!(plan(&[auto, ("pipeline.num_stages", "2"), TWO], NONE).unwrap().stages.count(), 2);
    let refused = |options: &[(&str, &str)]| plan(options, NONE).map(|plan| plan.stages).unwrap_err().to_string();
    assert!(refused(&[auto]).contains("or give pipeline.num_stages"));
    assert!(refused(&[("pipeline.num_stages", "2")]).contains("pipeline.num_stages = 2"));
    let error = refused(&[auto, ("pipeline.num_stages", "2"), THREE]);
    assert!(error.contains("num_stages = 2") && error.contains("size = 3"), "{error}");
    let error = refused(&[auto, ("pipeline.num_stages", "7")]);
    assert!(error.contains("6 segments cannot fill 7 stages"), "{error}");
    let scopes = launch(&config(&[auto, ("pipeline.num_stages", "2")]).unwrap(), |epl| {
        epl.build(|at| at.default_strategy(epl_core::Strategy::replicate(1), |at| chain(at, NONE))).map(|_| ())
    });
    let error = scopes.unwrap_err().to_string();
    assert!(error.contains("auto.auto_parallel = true chooses 2 stages"), "{error}");
}

/// The losses of two steps of three micro-batches on every rank.
fn losses(options: &[(&str, &str)], micro_batches: u64) -> Result<Vec<Vec<f64>>, Error> {
    launch(&config(options)?, |epl| {
        let mut engine = Engine::build(&epl, |at| chain(at, NONE), &SgdConfig::new())?;
        let rows = |sample: u64| Tensor::full([1, 3], 0.1 + sample as f64, epl.place().device());
        let batch = || (0..micro_batches).map(|sample| MicroBatch::new(rows(sample), [sample])).collect();
        (0..2).map(|_| Ok(engine.step(batch(), 0.1)?.loss)).collect()
    })
}

#[test]
fn a_schedule_of_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let three = ("pipeline.num_micro_batch", "3");
    let expected = losses(&[TWO, three], 3).unwrap();
    // The last stage takes the backwards from behind; nobody would.
    let own = file("own", "F0 F1 F2 B2 B1 B0\nF0 F1 F2 B2 B1 B0\n");
    let own = ("pipeline.schedule_file", own.as_str());
    let found = losses(&[TWO, three, own], 3).unwrap();
    let close = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < 1e-6;
    assert!(found.concat().iter().zip(&expected.concat()).all(close), "{found:?} instead of {expected:?}");
    let planned = plan(&[TWO, three, own], NONE).unwrap();
    assert!(matches!(&planned.schedule, Order::File { .. }));
    let text = planned.to_string();
    assert!(text.contains(own.1) && text.contains("stage 0  F0F1F2"), "{text}");
    // What a rule says, from a file, is the same to the bit.
    let rule = file("rule", &Schedule::PreferBackward.verified(2, 3).unwrap().to_string());
    assert_eq!(losses(&[TWO, three, ("pipeline.schedule_file", &rule)], 3).unwrap(), expected);

    let refused = |options: &[(&str, &str)]| losses(options, 3).unwrap_err().to_string();
    let circle = file("circle", "F0 B0 F1 B1 F2 B2\nF1 B1 F0 B0 F2 B2");
    let error = refused(&[TWO, three, ("pipeline.schedule_file", &circle)]);
    assert!(error.contains("pipeline.schedule_file") && error.contains(&circle), "{error}");
    let error = refused(&[TWO, three, ("pipeline.schedule_file", "/no/such/file")]);
    assert!(error.contains("/no/such/file"), "{error}");
    let error = refused(&[THREE, three, own]);
    assert!(error.contains("is 2, that of stages 3"), "{error}");
    let error = refused(&[three, own]);
    assert!(error.contains("there is 1"), "{error}");
    let error = refused(&[TWO, three, own, ("pipeline.strategy", "PreferForward")]);
    assert!(error.contains("two orders"), "{error}");
    let error = losses(&[TWO, three, own], 2).unwrap_err().to_string();
    assert!(error.contains("for 3 micro-batches, and this step has 2"), "{error}");
}

#[test]
fn what_is_kept_is_named() {
    let collection = ("gradient_checkpoint.type", "collection");
    let runs = |kept: &str| plan(&[collection, ("gradient_checkpoint.kept", kept)], NONE).map(|plan| plan.recompute);
    assert_eq!(runs("layers.1,layers.3").unwrap(), [0..1, 1..3, 3..5]);
    assert_eq!(runs("layers.1,3").unwrap(), [0..1, 1..3, 3..5]);
    let error = runs("layers.1,layer.3").unwrap_err().to_string();
    assert!(error.contains("segment layer.3") && error.contains("layers.0, layers.1"), "{error}");
    let error = runs("6").unwrap_err().to_string();
    assert!(error.contains("segment 6 of a model of 6 segments"), "{error}");
    let text = plan(&[collection, ("gradient_checkpoint.kept", "layers.3")], NONE).unwrap().to_string();
    assert!(text.contains("layers.3, layers.4: only what enters is kept"), "{text}");
}
