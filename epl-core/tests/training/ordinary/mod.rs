//! Models of Burn's own layers, those of `examples/ordinary` among them, under every strategy: what they draw repeats on the same layout, whatever is run again, and
//! their running statistics move once.
//!
//! Burn's generator is a whole process's: each test has one of its own.

mod calls;
mod models;
mod norms;
// Here with Burn's own layers only.
#[allow(dead_code)]
#[path = "../../../../examples/ordinary/programs/mod.rs"]
mod programs;

use std::collections::BTreeMap;
use std::path::Path;

use burn::optim::AdamWConfig;
use burn::tensor::{Device, TensorData};
use epl_core::config::HalfDtype;
use epl_core::data::Rows;
use epl_core::testing::{config, in_half};
use epl_core::{Config, Engine, MicroBatch, Model, Place, launch};

use models::{dropping, recurrent, sequences};
use programs::{data, image, lstm, regression, text};

/// What is compared to the bit.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    losses: Vec<f64>,
    /// Also running statistics.
    parameters: BTreeMap<String, TensorData>,
    /// The loss over other batches, without Dropout.
    evaluated: f64,
}

/// Where a run begins, and what becomes of it.
#[derive(Clone, Copy, Default)]
struct Folders<'a> {
    load: Option<&'a Path>,
    save: Option<&'a Path>,
}

/// Steps `steps` of a model; the first rank's view.
fn train<M: Model<Batch: Rows>>(
    config: &Config,
    model: impl Fn(&Place) -> M + Sync,
    batch: impl Fn(u64, &Device) -> M::Batch + Sync,
    steps: core::ops::Range<u64>,
    folders: Folders<'_>,
) -> Run {
    let ranks = launch(config, |epl| {
        let device = epl.place().device();
        let mut engine = Engine::build(&epl, &model, &AdamWConfig::new())?;
        if let Some(folder) = folders.load {
            engine.load(folder)?;
        }
        let losses = steps
            .clone()
            .map(|step| Ok(engine.train_batch(&batch(step, device), 0.01 * 0.97_f64.powi(step as i32))?.loss));
        let losses = losses.collect::<Result<_, epl_core::Error>>()?;
        if let Some(folder) = folders.save {
            engine.save(folder)?;
        }
        let all = (1000..1016).map(|step| {
            let batch = batch(step, &device.clone().without_autodiff());
            let samples: Vec<u64> = (0..batch.rows()? as u64).collect();
            Ok(MicroBatch::new(batch, samples))
        });
        let evaluated = engine.evaluate(all)?.loss;
        Ok(Run { losses, parameters: engine.parameters()?, evaluated })
    });
    let ranks = ranks.unwrap_or_else(|error| panic!("{error}"));
    assert!(ranks.iter().all(|rank| *rank == ranks[0]), "all ranks have one model");
    ranks.into_iter().next().unwrap()
}

fn recomputing(mut config: Config) -> Config {
    config = config.with("gradient_checkpoint.type", "collection").unwrap();
    config.gradient_checkpoint.kept = Some(vec!["1".to_string()]);
    config.gradient_checkpoint.check_gradients = true;
    config
}

/// Of each layout: twice the same; what is run again, gathered or fetched changes nothing; and a run that is stopped goes on
/// as one that is not. In mixed precision too, whether or not some segment computes in `half` the bits.
fn assert_repeats<M: Model<Batch: Rows>>(
    model: impl Fn(&Place) -> M + Sync + Copy,
    rows: impl Fn(usize, u64, &Device) -> M::Batch + Sync,
    half: bool,
) {
    let batch = &|step, device: &Device| rows(12, step, device);
    let run = |config: &Config| train(config, model, batch, 0..3, Folders::default());
    for (data, micro_batches) in [(1, 1), (2, 1), (2, 2)] {
        let base = config(data, 1, 1).with("pipeline.num_micro_batch", micro_batches).unwrap();
        let first = run(&base);
        assert_eq!(first, run(&base), "{data} replicas, {micro_batches} micro-batches, the second time");
        assert_eq!(
            first,
            run(&recomputing(base.clone())),
            "{data} replicas, {micro_batches} micro-batches, recomputed"
        );
        assert_ne!(first, run(&base.clone().with("train.seed", 43).unwrap()), "another seed");
        let parked = run(&base.clone().with("offload.parameters", "host").unwrap());
        assert_eq!(first, parked, "{data} replicas, {micro_batches} micro-batches, offloaded parameters");
        let offload = base.clone().with("offload.level", "v0").unwrap();
        assert_eq!(run(&offload), run(&offload), "{data} replicas, {micro_batches} micro-batches, offloaded");
        if data > 1 {
            let zero = |level: &str| run(&base.clone().with("zero.level", level).unwrap());
            assert_eq!(zero("v2"), zero("v3"), "{micro_batches} micro-batches");
            // Micro-batch by micro-batch, gradients are added in another order.
            assert!(micro_batches > 1 || zero("v0") == zero("v3"), "{micro_batches} micro-batches");
        }
        let staged = base.clone().with("auto.auto_parallel", true).unwrap().with("pipeline.num_stages", 2).unwrap();
        let staged = run(&staged);
        assert_eq!(staged.losses, first.losses, "{data} replicas, {micro_batches} micro-batches, two stages");
        assert_resumes(&base, model, batch, &first);
        let bf16 = in_half(base.clone(), HalfDtype::Bf16);
        let rounded = run(&bf16);
        assert_eq!(rounded != first, half, "{data} replicas, {micro_batches} micro-batches, in bf16");
        assert_eq!(rounded, run(&bf16), "{data} replicas, {micro_batches} micro-batches, in bf16, the second time");
        assert_eq!(
            rounded,
            run(&recomputing(bf16.clone())),
            "{data} replicas, {micro_batches} micro-batches, in bf16, recomputed"
        );
        assert_resumes(&bf16, model, batch, &rounded);
    }
}

/// A run that is stopped after two of its three steps goes on as one that is not.
fn assert_resumes<M: Model<Batch: Rows>>(
    config: &Config,
    model: impl Fn(&Place) -> M + Sync + Copy,
    batch: impl Fn(u64, &Device) -> M::Batch + Sync,
    unbroken: &Run,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    train(config, model, &batch, 0..2, Folders { save: Some(&path), load: None });
    let resumed = train(config, model, &batch, 2..3, Folders { load: Some(&path), save: None });
    assert_eq!((unbroken.losses[2], &unbroken.parameters), (resumed.losses[0], &resumed.parameters), "resumed");
}

#[test]
fn convolutions_with_batch_norm_and_dropout_repeat() {
    epl_testing::alone(|| {
        assert_repeats(|at| image::burns::ImageClassifierConfig::new(4).chain(at), data::images, true)
    });
}

#[test]
fn a_transformer_encoder_with_dropout_repeats() {
    epl_testing::alone(|| {
        assert_repeats(|at| text::burns::TextClassifierConfig::new(20, 2).chain(at), data::texts, true)
    });
}

#[test]
fn a_regression_repeats() {
    epl_testing::alone(|| {
        assert_repeats(|at| regression::burns::RegressionConfig::new(8).chain(at), data::points, true)
    });
}

#[test]
fn an_lstm_with_dropout_repeats() {
    epl_testing::alone(|| assert_repeats(|at| lstm::burns::ForecastConfig::new(1).chain(at), data::curves, true));
}

#[test]
fn an_lstm_with_noise_and_random_slopes_repeats() {
    epl_testing::alone(|| assert_repeats(recurrent, sequences, false));
}

/// What draws is none of Burn's layers.
#[test]
fn draws_of_a_models_own_repeat() {
    epl_testing::alone(|| assert_repeats(dropping, sequences, true));
}

/// The loss after some steps, for one rank and under other layouts; what is run again, gathered or fetched has the same bits
/// as what is not ([`assert_repeats`]).
fn assert_learns<M: Model<Batch: Rows>>(
    model: impl Fn(&Place) -> M + Sync + Copy,
    rows: impl Fn(usize, u64, &Device) -> M::Batch + Sync,
) {
    let batch = |step, device: &Device| rows(64, step, device);
    let run = |config: &Config| {
        let run = train(config, model, batch, 0..80, Folders::default());
        assert!(run.evaluated < 0.75 * run.losses[0], "{} after {}", run.evaluated, run.losses[0]);
        run.evaluated
    };
    let one = run(&config(1, 1, 1));
    let two = config(2, 1, 1);
    let others = [
        ("data 2", two.clone()),
        ("O1", in_half(config(1, 1, 1), HalfDtype::Bf16)),
        ("v3, offloaded, accumulated, O1", {
            let sharded = two.with("zero.level", "v3").unwrap().with("offload.level", "v0").unwrap();
            in_half(sharded.with("pipeline.num_micro_batch", 2).unwrap(), HalfDtype::Bf16)
        }),
    ];
    for (what, config) in others {
        let other = run(&config);
        println!("{what}: {other} against {one}: {:.4}", other / one - 1.0);
        assert!((other / one - 1.0).abs() < 0.05, "{what}: {other} against {one}");
    }
}

#[test]
fn convolutions_with_batch_norm_and_dropout_learn() {
    epl_testing::alone(|| assert_learns(|at| image::burns::ImageClassifierConfig::new(4).chain(at), data::images));
}

#[test]
fn a_transformer_encoder_with_dropout_learns() {
    epl_testing::alone(|| assert_learns(|at| text::burns::TextClassifierConfig::new(20, 2).chain(at), data::texts));
}

#[test]
fn a_regression_learns() {
    epl_testing::alone(|| assert_learns(|at| regression::burns::RegressionConfig::new(8).chain(at), data::points));
}

#[test]
fn an_lstm_with_dropout_learns() {
    epl_testing::alone(|| assert_learns(|at| lstm::burns::ForecastConfig::new(1).chain(at), data::curves));
}

#[test]
fn an_lstm_with_noise_and_random_slopes_learns() {
    epl_testing::alone(|| assert_learns(recurrent, sequences));
}
