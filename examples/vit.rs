//! Trains a ViT or a ResMLP across ranks to classify images: coloured shapes, 20 classes by rule, or images that you have.
//!
//! ```text
//! cargo run --release --example vit                                                  # two replicas
//! cargo run --release --example vit -- dist.data_parallel_size=1 dist.tensor_parallel_size=2
//! cargo run --release --example vit -- dist.data_parallel_size=1 dist.pipeline_parallel_size=2 pipeline.num_micro_batch=4
//! cargo run --release --example vit -- auto.auto_parallel=true cluster.ranks=2      # the layout, chosen
//! cargo run --release --example vit -- --cifar10 cifar-10-batches-bin --augment mix train.global_batch_size=128
//! cargo run --release --example vit -- --resmlp --mnist fashion --augment crop
//! ```
//!
//! Any option of the configuration may follow.

#[path = "images/mod.rs"]
mod images;

use std::path::Path;
use std::process::ExitCode;

use burn::optim::AdamWConfig;
use burn::tensor::{Bool, Tensor};
use clap::Parser;
use epl::config::{Config, Layers};
use epl::evaluate::{Accuracy, Evaluator};
use epl::models::vision::ImageBatch;
use epl::models::{ResMlp, ResMlpConfig, ViT, ViTConfig};
use epl::prelude::*;

use images::{ImageArgs, Task};

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

/// Train a ViT or a ResMLP across ranks to classify images.
///
/// Without --images, --cifar10, --cifar100 or --mnist it learns to tell coloured shapes.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    #[command(flatten)]
    data: ImageArgs,
    /// The shape of the model, by name [default: shapes, of a folder small, of a ResMLP s12]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// A ResMLP instead of a ViT
    #[arg(long)]
    resmlp: bool,
    /// Options of the configuration, such as schedule.rate=1e-3
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl Args {
    fn config(&self) -> epl::Result<Config> {
        let layers = Layers::new().toml(DEFAULTS, Path::new("vit.toml"))?.process_environment()?;
        let mut config = layers.command_line(&self.settings)?.resolve()?;
        if !["cluster.ranks", "dist.data_parallel_size"].iter().any(|key| config.is_given(key)) {
            config.set("dist.data_parallel_size", 2)?;
        }
        if !self.data.is_judged() {
            config.train.eval_every = None;
        }
        Ok(config)
    }

    fn model(&self) -> &str {
        let of_folder = if self.resmlp { "s12" } else { "small" };
        self.model.as_deref().unwrap_or(if self.data.is_folder() { of_folder } else { "shapes" })
    }
}

/// Whether each image's class is the most likely one, by the features that the last segment gave.
type Judge<M> = fn(&M, Tensor<3>, &ImageBatch) -> epl::Result<Tensor<1, Bool>>;

/// Trains on one rank: the share of images that are classified right, in percent.
fn train<M>(epl: &Epl, task: &Task, model: impl Fn(&Place) -> M, judge: Judge<M>) -> epl::Result<Option<f64>>
where
    M: Model<Batch = ImageBatch, Carry = Tensor<3>> + 'static,
{
    let config = epl.config();
    let data = task.train_data(config.train.global_batch_size.unwrap_or(64), config.train.seed)?;
    let optimizer = AdamWConfig::new().with_weight_decay(0.05);
    let (epl, found) = epl.auto_parallel(&model, &optimizer, &data)?;
    if let (Some(found), 0) = (found, epl.context().world().rank()) {
        println!("{found}");
    }
    let mut trainer = Trainer::build(&epl, &model, &optimizer)?.with_invariant("images", &task.fingerprint)?;
    if let Some(valid) = task.valid_data()? {
        let top = Accuracy::of("top1", |right: &Tensor<1, Bool>| right.clone());
        let evaluator = Evaluator::new(valid.clone(), judge).with(top);
        trainer = trainer.with_valid(valid).with_evaluator(evaluator);
    }
    let summary = trainer.fit(&data)?.summary;
    Ok(summary.evaluation.and_then(|found| found.get("top1")).map(|share| 100.0 * share))
}

fn run(args: &Args) -> epl::Result<()> {
    let config = args.config()?;
    let task = args.data.task(&config)?;
    let found = match args.resmlp {
        true => {
            let model = ResMlpConfig::preset(args.model(), task.classes)?.with_image_size(task.size);
            let judge =
                |model: &ResMlp<_>, features, batch: &ImageBatch| Ok(model.in_top_k(features, batch.labels.clone(), 1));
            epl::launch(&config, |epl| train(&epl, &task, |at| model.init(at), judge))?
        }
        false => {
            let model = ViTConfig::preset(args.model(), task.classes)?.with_image_size(task.size);
            let judge =
                |model: &ViT<_>, features, batch: &ImageBatch| Ok(model.in_top_k(features, batch.labels.clone(), 1));
            epl::launch(&config, |epl| train(&epl, &task, |at| model.init(at), judge))?
        }
    };
    if let Some(percent) = found.into_iter().flatten().next() {
        println!("top-1: {percent:.1}%");
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
