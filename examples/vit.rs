//! Trains a ViT across ranks to classify coloured shapes, 20 classes by rule.
//!
//! ```text
//! cargo run --release --example vit                                                  # two replicas
//! cargo run --release --example vit -- dist.data_parallel_size=1 dist.tensor_parallel_size=2
//! cargo run --release --example vit -- dist.data_parallel_size=1 dist.pipeline_parallel_size=2 pipeline.num_micro_batch=4
//! cargo run --release --example vit -- auto.auto_parallel=true cluster.ranks=2      # the layout, chosen
//! ```
//!
//! Any option of the configuration may follow.

use std::path::Path;
use std::process::ExitCode;

use burn::data::dataset::Dataset;
use burn::optim::AdamWConfig;
use burn::tensor::{Bool, Tensor};
use epl::config::Layers;
use epl::data::{ShuffledSampler, TrainData, ValidData};
use epl::evaluate::{Accuracy, Evaluator};
use epl::models::ViTConfig;
use epl::models::vision::shapes::CLASSES;
use epl::models::vision::{ClassLayer, ImageBatch, ImageBatcher, ShapesConfig};
use epl::models::vit::ViT;
use epl::prelude::*;

/// What this program sets where the user says nothing.
const DEFAULTS: &str = "
[train]
global_batch_size = 64
eval_every = 250
[schedule]
kind = 'cosine'
rate = 1e-3
warmup_steps = 100
steps = 1000
";

/// Images that one replica judges at a time.
const JUDGED: usize = 100;

/// Whether each image's class is the most likely one.
fn judge<C: ClassLayer>(model: &ViT<C>, features: Tensor<3>, batch: &ImageBatch) -> epl::Result<Tensor<1, Bool>> {
    Ok(model.in_top_k(features, batch.labels.clone(), 1))
}

/// Trains on one rank: the share of held-out images that are classified right, in percent.
fn train(epl: &Epl) -> epl::Result<Option<f64>> {
    let shapes = ShapesConfig::new()
        .with_seed(epl.config().train.seed)
        .init()
        .map_err(|error| epl::Error::invalid(error.to_string()))?;
    let (model, batcher) = (ViTConfig::shapes(CLASSES), ImageBatcher::new(CLASSES));
    let batch = epl.config().train.global_batch_size.unwrap_or(64);
    let sampler = ShuffledSampler::new(shapes.training.len(), batch, epl.config().train.seed)?;
    let data = TrainData::new(shapes.training, batcher.clone(), sampler)?;
    let optimizer = AdamWConfig::new().with_weight_decay(0.05);
    let (epl, found) = epl.auto_parallel(|at| model.init(at), &optimizer, &data)?;
    if let (Some(found), 0) = (found, epl.context().world().rank()) {
        println!("{found}");
    }
    let valid = ValidData::new(shapes.held_out, batcher, JUDGED)?;
    let top = Accuracy::of("top1", |right: &Tensor<1, Bool>| right.clone());
    let trainer = Trainer::build(&epl, |at| model.init(at), &optimizer)?;
    let evaluator = Evaluator::new(valid.clone(), judge).with(top);
    let summary = trainer.with_valid(valid).with_evaluator(evaluator).fit(&data)?.summary;
    Ok(summary.evaluation.and_then(|found| found.get("top1")).map(|share| 100.0 * share))
}

fn main() -> ExitCode {
    let run = || -> epl::Result<()> {
        let layers = Layers::new().toml(DEFAULTS, Path::new("vit.toml"))?.process_environment()?;
        let mut config = layers.command_line(std::env::args().skip(1))?.resolve()?;
        if !["cluster.ranks", "dist.data_parallel_size"].iter().any(|key| config.is_given(key)) {
            config.set("dist.data_parallel_size", 2)?;
        }
        let found = epl::launch(&config, |epl| train(&epl))?;
        if let Some(percent) = found.into_iter().flatten().next() {
            println!("top-1: {percent:.1}%");
        }
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
