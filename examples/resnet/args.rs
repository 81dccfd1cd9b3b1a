//! The command line, and the configuration it makes.

use std::path::Path;

use clap::Parser;
use epl::config::{Config, ConfigError, Layers};
use epl::models::ResNetConfig;

use crate::images::ImageArgs;

/// Train a ResNet across ranks to classify images.
///
/// Without --images, --cifar10, --cifar100 or --mnist it learns to tell coloured shapes.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    #[command(flatten)]
    pub data: ImageArgs,
    /// The model, by name [default: tiny, of a folder resnet18]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// At least so many classes, which need not all occur
    #[arg(long, value_name = "N")]
    classes: Option<usize>,
    /// Divide the classes over the ranks, which each hold the backbone
    #[arg(long)]
    pub split: bool,
    /// Replicas of the model
    #[arg(long = "data", value_name = "D")]
    replicas: Option<usize>,
    /// Stop after this many steps; the schedule is unchanged
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Seed of the data and the initial values
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// An option of the configuration, such as schedule.rate=0.1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// The folder of the run: checkpoints, metrics.jsonl, loss.svg; none: nothing is written
    #[arg(long, value_name = "DIR")]
    out: Option<String>,
    /// Go on from the latest checkpoint in --out
    #[arg(long, requires = "out")]
    resume: bool,
}

/// What this program sets where the user says nothing.
const DEFAULTS: &str = include_str!("shapes.toml");

const REPLICAS: &str = "dist.data_parallel_size";

impl Args {
    /// This program's settings < environment < `--set` < the other flags.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let layers = Layers::new().toml(DEFAULTS, Path::new("shapes.toml"))?.process_environment()?;
        let layers = layers.command_line(&self.settings)?.flags([("train.seed", self.seed)])?;
        let layers = layers.flags([(REPLICAS, self.replicas), ("train.steps", self.steps)])?;
        let resume = self.resume.then_some("latest");
        let mut config = layers.flags([("train.out", self.out.as_deref()), ("train.resume", resume)])?.resolve()?;
        if !config.is_given(REPLICAS) {
            config.set(REPLICAS, 2)?;
        }
        config.cluster.colocate_split_and_replicate |= self.split;
        if !self.data.is_judged() {
            // There is nothing to evaluate on.
            config.train.eval_every = None;
        }
        Ok(config)
    }

    /// The model for so many classes, or more.
    pub fn model(&self, classes: usize) -> epl::Result<ResNetConfig> {
        let default = if self.data.is_folder() { "resnet18" } else { "tiny" };
        let classes = classes.max(self.classes.unwrap_or(0));
        ResNetConfig::preset(self.model.as_deref().unwrap_or(default), classes)
    }
}
