//! What every rank does: build, train, judge.

use std::process::ExitCode;

use burn::optim::SgdConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{Bool, Tensor};
use epl::evaluate::{Accuracy, Evaluator};
use epl::models::ResNetConfig;
use epl::models::resnet::ResNet;
use epl::models::vision::{ClassLayer, ImageBatch};
use epl::trainer::{Evaluation, StopHandle, Trainer};
use epl::{Engine, EngineSettings, Epl, LaidOutModel, Result};

use crate::args::Args;
use crate::images::Task;

/// The last line of the run, on the first rank, and the exit code of the program.
pub type Ended = (Option<String>, ExitCode);

/// Trains on one rank.
pub fn rank(epl: &Epl, task: &Task, model: &ResNetConfig, args: &Args, stop: &StopHandle) -> Result<Ended> {
    match args.split {
        true => train(epl, epl.build(|place| model.init_colocated(epl.cluster().total_gpu_num(), place))?, task, stop),
        false => train(epl, epl.build(|place| model.init(place))?, task, stop),
    }
}

fn train<C: ClassLayer>(epl: &Epl, built: LaidOutModel<ResNet<C>>, task: &Task, stop: &StopHandle) -> Result<Ended> {
    let (model, replicas) = (built.model().config().clone(), built.context().replicas());
    let optimizer = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new().with_dampening(0.0)))
        .with_weight_decay(Some(WeightDecayConfig::new(5e-4)));
    let engine = Engine::new(built, &optimizer, EngineSettings::from_config(epl.config()))?;
    let data = task.train_data(epl.config().batch(replicas)?.global_batch_size, epl.config().train.seed)?;
    let mut trainer = Trainer::from_config(engine, epl.config())?
        .with_stop(stop.clone())
        .with_invariant("model", &model)?
        .with_invariant("classes", &task.classes)?
        .with_invariant("images", &task.fingerprint)?;
    if let Some(valid) = task.valid_data()? {
        let top =
            |name: &str, place: usize| Accuracy::of(name, move |right: &[Tensor<1, Bool>; 2]| right[place].clone());
        let evaluator = Evaluator::new(valid.clone(), judge).with(top("top1", 0)).with(top("top5", 1));
        trainer = trainer.with_valid(valid).with_evaluator(evaluator);
    }
    let summary = trainer.fit(&data)?.summary;
    if summary.interrupted {
        return Ok((None, summary.exit_code()));
    }
    let found = summary.evaluation.filter(|_| epl.context().world().rank() == 0);
    let percent = |found: &Evaluation, name: &str| found.get(name).map(|share| 100.0 * share);
    let said = |found: Evaluation| {
        Some(format!("top-1: {:.1}%, top-5: {:.1}%", percent(&found, "top1")?, percent(&found, "top5")?))
    };
    Ok((found.and_then(said), ExitCode::SUCCESS))
}

/// Whether each image's class is the most likely one, and whether it is among five.
fn judge<C: ClassLayer>(model: &ResNet<C>, features: Tensor<4>, batch: &ImageBatch) -> Result<[Tensor<1, Bool>; 2]> {
    Ok([1, 5].map(|k| model.in_top_k(features.clone(), batch.labels.clone(), k)))
}
