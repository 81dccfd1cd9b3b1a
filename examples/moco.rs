//! Learns images without their classes, by telling views of an image from those of others; then reads their classes off what was
//! learned by one linear layer, beside the same of an encoder that learned nothing.
//!
//! ```text
//! cargo run --release --example moco                              # two replicas
//! cargo run --release --example moco -- train.seed=1 dist.data_parallel_size=1 dist.pipeline_parallel_size=2
//! ```
//!
//! Any option of the configuration may follow; batches and rates are those of the first part, and `train.steps` ends either.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use burn::data::dataset::Dataset;
use burn::data::dataset::transform::PartialDataset;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamWConfig, SgdConfig};
use burn::tensor::{Bool, Tensor, TensorData};
use epl::config::Layers;
use epl::data::{ShuffledSampler, TrainData, ValidData};
use epl::evaluate::{Accuracy, Evaluator};
use epl::models::moco::encoder_map;
use epl::models::vision::shapes::CLASSES;
use epl::models::vision::transform::{ColorJitter, RandomHorizontalFlip, RandomResizedCrop, Transforms};
use epl::models::vision::{ImageBatch, ImageBatcher, ShapesConfig, ShapesSplit, Views};
use epl::models::{MocoBatcher, MocoConfig, ViT, ViTConfig};
use epl::modules::ReplicatedLinear;
use epl::optim::ParamGroups;
use epl::prelude::*;
use epl::trainer::TrainerConfig;

/// What this program sets where the user says nothing.
const DEFAULTS: &str = "
[train]
global_batch_size = 128
[schedule]
kind = 'cosine'
rate = 2e-3
warmup_steps = 50
steps = 700
";

/// Images whose classes are told.
const LABELLED: usize = 4000;
/// Steps of the second part, and its rate.
const STEPS: u64 = 400;
const RATE: f64 = 1.0;
/// Images that one replica judges at a time.
const JUDGED: usize = 100;

type Parameters = BTreeMap<String, TensorData>;

/// The encoder, of patches of 8×8 pixels, whose positions are not learned.
fn encoder() -> ViTConfig {
    ViTConfig::shapes(CLASSES).with_patch_size(8).with_fixed_positions(true)
}

fn optimizer() -> AdamWConfig {
    AdamWConfig::new().with_weight_decay(0.1)
}

/// What is seen of an image each time: a part, perhaps mirrored, in other colours. They leave red, green, blue and yellow apart, but an
/// image is not known by its very colour.
fn view(size: usize) -> epl::Result<Transforms> {
    let colours = ColorJitter::new().with_brightness(0.4).with_contrast(0.4).with_saturation(0.4).with_hue(0.05);
    let part = RandomResizedCrop::new(size).with_scale([0.4, 1.0]);
    let steps = Transforms::new().then(part).and_then(|steps| steps.then(RandomHorizontalFlip::new()));
    steps.and_then(|steps| steps.then(colours)).map_err(|error| Error::invalid(error.to_string()))
}

/// Learns to tell images apart: the parameters before and after.
fn tell_apart(epl: &Epl, shapes: &ShapesSplit) -> epl::Result<[Parameters; 2]> {
    let config = epl.config();
    let steps = config.schedule.steps.or(config.train.steps).unwrap_or(1) as u64;
    let model = MocoConfig::new(encoder(), steps).with_dim(64).with_mlp_dim(256);
    let (batch, seed) = (config.batch(epl.context().replicas())?.global_batch_size, config.train.seed);
    let view = view(model.encoder.image_size)?;
    let views = Views::new(MocoBatcher::new(ImageBatcher::new(CLASSES)), [view.clone(), view], seed);
    let sampler = ShuffledSampler::new(shapes.training.len(), batch, seed)?;
    let data = TrainData::of_samples(shapes.training.clone(), views, sampler)?;
    let first = epl.build(|at| model.init(at))?.parameters()?;
    let trained = Trainer::build(epl, |at| model.init(at), &optimizer())?.fit(&data)?;
    Ok([first, trained.engine.parameters()?])
}

/// Learns to read classes off an encoder, which stays: the share of held-out images that are classified right, in percent.
fn probe(epl: &Epl, shapes: &ShapesSplit, from: &Parameters) -> epl::Result<f64> {
    let (config, model, batcher) = (epl.config(), encoder(), ImageBatcher::new(CLASSES));
    let built = epl.build(|at| model.init(at))?.assign(from, &encoder_map())?;
    let sgd = SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0)));
    let sgd = ParamGroups::new(sgd).group(["embeddings", "layers", "norm"], |group| group.with_frozen(true));
    let engine = Engine::new(built, &sgd, EngineSettings::from_config(config))?;
    let told = PartialDataset::new(shapes.training.clone(), 0, LABELLED);
    let data = TrainData::new(told, batcher.clone(), ShuffledSampler::new(LABELLED, 128, config.train.seed)?)?;
    let rate = LrSchedule::new(RATE, Decay::Cosine { steps: STEPS });
    let steps = config.train.steps.map_or(STEPS, |steps| STEPS.min(steps as u64));
    let settings = TrainerConfig::new(steps).with_log_every(200);
    let trained = Trainer::new(engine, settings, rate).fit(&data)?;
    let judge = |model: &_, features, batch: &ImageBatch| Ok(top_1(model, features, batch));
    let top = Accuracy::of("top1", |right: &Tensor<1, Bool>| right.clone());
    let valid = ValidData::new(shapes.held_out.clone(), batcher, JUDGED)?;
    let found = Evaluator::new(valid, judge).with(top).measure(&trained.engine)?;
    let (_, share) = found.first().ok_or_else(|| Error::invalid("nothing was judged"))?;
    Ok(100.0 * share)
}

/// Whether each image's class is the most likely one.
fn top_1(model: &ViT<ReplicatedLinear>, features: Tensor<3>, batch: &ImageBatch) -> Tensor<1, Bool> {
    model.in_top_k(features, batch.labels.clone(), 1)
}

fn train(epl: &Epl) -> epl::Result<[f64; 2]> {
    let shapes = ShapesConfig::new().with_seed(epl.config().train.seed).init();
    let shapes = shapes.map_err(|error| Error::invalid(error.to_string()))?;
    let [first, learned] = tell_apart(epl, &shapes)?;
    Ok([probe(epl, &shapes, &learned)?, probe(epl, &shapes, &first)?])
}

fn main() -> ExitCode {
    let run = || -> epl::Result<()> {
        let layers = Layers::new().toml(DEFAULTS, Path::new("moco.toml"))?.process_environment()?;
        let mut config = layers.command_line(std::env::args().skip(1))?.resolve()?;
        if !["cluster.ranks", "dist.data_parallel_size"].iter().any(|key| config.is_given(key)) {
            config.set("dist.data_parallel_size", 2)?;
        }
        if let Some([learned, random]) = epl::launch(&config, |epl| train(&epl))?.first() {
            println!("top-1 of a linear probe: {learned:.1}% of what was learned, {random:.1}% of a random encoder");
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
