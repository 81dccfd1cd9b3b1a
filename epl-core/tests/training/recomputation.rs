//! What recomputation asks of a model, and what is refused.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::Tensor;
use epl_core::config::Config;
use epl_core::{Chain, Engine, Error, MicroBatch, Place, launch};

#[derive(Module, Debug)]
struct Net {
    layers: Vec<Linear>,
}

type Model = Chain<Net, Tensor<2>, Tensor<2>>;

/// Four layers; the second one is scaled by `scale`.
fn chain(at: &Place, scale: impl Fn() -> f64 + Send + Sync + 'static) -> Model {
    let layer = || LinearConfig::new(3, 3).init(at);
    Chain::of(Net { layers: (0..4).map(|_| layer()).collect() })
        .first(&["layers.0"], |net: &Net, rows: &Tensor<2>| net.layers[0].forward(rows.clone()).tanh())
        .then(&["layers.1"], move |net, rows, _| net.layers[1].forward(rows).tanh() * scale())
        .then(&["layers.2"], |net, rows, _| net.layers[2].forward(rows).tanh())
        .then(&["layers.3"], |net, rows, _| net.layers[3].forward(rows))
        .mean_loss(|_, rows, _| rows.powi_scalar(2).mean())
}

fn recomputing(kept: &[usize]) -> Config {
    let mut config = Config::new().with("gradient_checkpoint.type", "collection").unwrap();
    config.gradient_checkpoint.kept = Some(kept.iter().map(usize::to_string).collect());
    config
}

fn step(config: &Config, model: impl Fn(&Place) -> Model + Sync) -> Result<f64, Error> {
    let losses = launch(config, |epl| {
        let mut engine = Engine::build(&epl, &model, &SgdConfig::new())?;
        let rows = Tensor::ones([2, 3], epl.place().device());
        Ok(engine.step(vec![MicroBatch::new(rows, [0, 1])], 0.1)?.loss)
    });
    losses.map(|losses| losses[0])
}

#[test]
fn a_layer_that_remembers_something_is_found() {
    let mut config = recomputing(&[2]);
    config.gradient_checkpoint.check_gradients = true;
    assert!(step(&config, |at| chain(at, || 1.0)).is_ok());
    let forgetful = |at: &Place| {
        let calls = Arc::new(AtomicUsize::new(1));
        chain(at, move || calls.fetch_add(1, Ordering::Relaxed) as f64)
    };
    let error = step(&config, forgetful).unwrap_err().to_string();
    assert!(error.contains("layers.") && error.contains("when segments are recomputed"), "{error}");
    assert!(error.contains(", and `layers."), "each parameter is named: {error}");
    assert!(error.contains("[0..2, 2..3]"), "{error}");
    config.gradient_checkpoint.check_gradients = false;
    assert!(step(&config, forgetful).is_ok(), "nothing is compared unless it is asked for");
}

/// What a layer keeps beside its result, such as running statistics, moves once a forward, and not when a forward is only
/// repeated.
#[test]
fn the_check_of_gradients_moves_nothing_that_layers_keep() {
    let moved = |check: bool| {
        let mut config = recomputing(&[2]);
        config.gradient_checkpoint.check_gradients = check;
        let moved = Arc::new(AtomicUsize::new(0));
        let keeping = |at: &Place| {
            let (moved, context) = (moved.clone(), at.context().clone());
            chain(at, move || {
                moved.fetch_add(usize::from(!context.is_replay()), Ordering::Relaxed);
                1.0
            })
        };
        step(&config, keeping).unwrap();
        moved.load(Ordering::Relaxed)
    };
    assert_eq!((moved(false), moved(true)), (1, 1));
}

/// Who catches the error goes on with a pass that counts.
#[test]
fn measuring_that_fails_leaves_no_pass_marked_as_a_repetition() {
    let marked = launch(&Config::new(), |epl| {
        let engine = Engine::build(&epl, |at| chain(at, || panic!("broken")), &SgdConfig::new())?;
        let rows = Tensor::ones([2, 3], epl.place().device());
        let error = engine.profile(&MicroBatch::new(rows, [0, 1])).unwrap_err().to_string();
        assert!(error.contains("broken"), "{error}");
        Ok(engine.context().is_replay())
    });
    assert_eq!(marked.unwrap(), [false]);
}

fn refused(config: &Config) -> String {
    step(config, |at| chain(at, || 1.0)).unwrap_err().to_string()
}

#[test]
fn what_is_kept_must_be_named_and_be_there() {
    let error = refused(&Config::new().with("gradient_checkpoint.type", "collection").unwrap());
    assert!(error.contains("none is named") && error.contains("gradient_checkpoint.type = auto"), "{error}");
    let error = refused(&recomputing(&[1, 4]));
    assert!(error.contains("names segment 4 of a model of 4 segments"), "{error}");
    let mut config = recomputing(&[1]);
    config.gradient_checkpoint.end_taskgraph = 1;
    let error = refused(&config);
    assert!(error.contains("end_taskgraph = 1") && error.contains("there are 1"), "{error}");
}
