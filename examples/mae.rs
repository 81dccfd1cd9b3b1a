//! Learns images without their classes, by filling in patches; then their classes, from a few: beside a ViT that begins anew.
//!
//! ```text
//! cargo run --release --example mae                              # two replicas
//! cargo run --release --example mae -- train.seed=1 dist.data_parallel_size=1 dist.tensor_parallel_size=2
//! ```
//!
//! Any option of the configuration may follow; batches and rates are those of the first part, and `train.steps` ends either.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use burn::data::dataset::Dataset;
use burn::data::dataset::transform::PartialDataset;
use burn::optim::AdamWConfig;
use burn::tensor::{Bool, Tensor, TensorData};
use epl::config::Layers;
use epl::data::{ShuffledSampler, TrainData, ValidData};
use epl::evaluate::{Accuracy, Evaluator};
use epl::models::vision::shapes::CLASSES;
use epl::models::vision::{ImageBatch, ImageBatcher, ShapesConfig, ShapesSplit};
use epl::models::{MaeBatcher, MaeConfig, ViTConfig};
use epl::prelude::*;
use epl::tensors::AssignMap;
use epl::trainer::TrainerConfig;

/// What this program sets where the user says nothing.
const DEFAULTS: &str = "
[train]
global_batch_size = 64
[schedule]
kind = 'cosine'
rate = 2e-3
warmup_steps = 100
steps = 1800
";

/// Images whose classes are told: one of twenty.
const LABELLED: usize = 1000;
/// Steps of the second part, and its rate.
const STEPS: u64 = 300;
const RATE: f64 = 1e-3;
/// Images that one replica judges at a time.
const JUDGED: usize = 100;

type Parameters = BTreeMap<String, TensorData>;

/// The encoder, whose positions are not learned in either part.
fn encoder() -> ViTConfig {
    ViTConfig::shapes(CLASSES).with_fixed_positions(true)
}

fn optimizer() -> AdamWConfig {
    AdamWConfig::new().with_beta_2(0.95).with_weight_decay(0.05)
}

/// Learns to fill in three fifths of each image: the parameters.
fn fill_in(epl: &Epl, shapes: &ShapesSplit) -> epl::Result<Parameters> {
    let model = MaeConfig::new(encoder())
        .with_hidden_share(0.6)
        .with_decoder_d_model(64)
        .with_decoder_d_ff(256)
        .with_decoder_heads(4)
        .with_decoder_layers(2);
    let (images, seed) = (shapes.training.clone(), epl.config().train.seed);
    let batch = epl.config().batch(epl.context().replicas())?.global_batch_size;
    let sampler = ShuffledSampler::new(images.len(), batch, seed)?;
    let data = TrainData::new(images, MaeBatcher::new(ImageBatcher::new(CLASSES)), sampler)?;
    Trainer::build(epl, |at| model.init(at), &optimizer())?.fit(&data)?.engine.parameters()
}

/// Learns the classes of a few images, from what was learned or anew: the share of held-out ones that are classified right, in
/// percent.
fn classify(epl: &Epl, shapes: &ShapesSplit, from: Option<&Parameters>) -> epl::Result<f64> {
    let (config, model, batcher) = (epl.config(), encoder(), ImageBatcher::new(CLASSES));
    let mut built = epl.build(|at| model.init(at))?;
    if let Some(parameters) = from {
        let map = AssignMap::identity().allow_missing("class_layer").allow_unused("decoder");
        built = built.assign(parameters, &map)?;
    }
    let engine = Engine::new(built, &optimizer(), EngineSettings::from_config(config))?;
    let few = PartialDataset::new(shapes.training.clone(), 0, LABELLED);
    let data = TrainData::new(few, batcher.clone(), ShuffledSampler::new(LABELLED, 64, config.train.seed)?)?;
    let rate = LrSchedule::new(RATE, Decay::Cosine { steps: STEPS }).with_warmup(30);
    let steps = config.train.steps.map_or(STEPS, |steps| STEPS.min(steps as u64));
    let settings = TrainerConfig::new(steps).with_log_every(100);
    let trained = Trainer::new(engine, settings, rate).fit(&data)?;
    let judge = |model: &_, features, batch: &ImageBatch| Ok(top_1(model, features, batch));
    let top = Accuracy::of("top1", |right: &Tensor<1, Bool>| right.clone());
    let valid = ValidData::new(shapes.held_out.clone(), batcher, JUDGED)?;
    let found = Evaluator::new(valid, judge).with(top).measure(&trained.engine)?;
    let (_, share) = found.first().ok_or_else(|| Error::invalid("nothing was judged"))?;
    Ok(100.0 * share)
}

/// Whether each image's class is the most likely one.
fn top_1(
    model: &epl::models::ViT<epl::modules::ReplicatedLinear>,
    features: Tensor<3>,
    batch: &ImageBatch,
) -> Tensor<1, Bool> {
    model.in_top_k(features, batch.labels.clone(), 1)
}

fn train(epl: &Epl) -> epl::Result<[f64; 2]> {
    let shapes = ShapesConfig::new().with_seed(epl.config().train.seed).init();
    let shapes = shapes.map_err(|error| Error::invalid(error.to_string()))?;
    let learned = fill_in(epl, &shapes)?;
    Ok([classify(epl, &shapes, Some(&learned))?, classify(epl, &shapes, None)?])
}

fn main() -> ExitCode {
    let run = || -> epl::Result<()> {
        let layers = Layers::new().toml(DEFAULTS, Path::new("mae.toml"))?.process_environment()?;
        let mut config = layers.command_line(std::env::args().skip(1))?.resolve()?;
        if !["cluster.ranks", "dist.data_parallel_size"].iter().any(|key| config.is_given(key)) {
            config.set("dist.data_parallel_size", 2)?;
        }
        if let Some([learned, anew]) = epl::launch(&config, |epl| train(&epl))?.first() {
            println!("top-1 from {LABELLED} labelled images: {learned:.1}% after filling in, {anew:.1}% anew");
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
