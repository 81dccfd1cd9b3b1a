//! The command line, and the configuration it makes.

use std::path::{Path, PathBuf};

use clap::Parser;
use epl::config::{Config, ConfigError, Layers};
use epl::models::t5::T5Config;

use crate::out::by_default;
use crate::task::Task;

/// Train a mixture-of-experts T5 across ranks.
///
/// Without --source and --target it learns to translate English number words to German ones.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    /// Files of source sentences, one a line, plain or .gz
    #[arg(long, num_args = 1.., requires = "target", value_name = "F")]
    pub source: Vec<PathBuf>,
    /// Files of target sentences, line by line the translations of the sources
    #[arg(long, num_args = 1.., requires = "source", value_name = "F")]
    pub target: Vec<PathBuf>,
    /// Files of source sentences to evaluate on
    #[arg(long, num_args = 1.., requires_all = ["valid_target", "source"], value_name = "F")]
    pub valid_source: Vec<PathBuf>,
    /// Files of target sentences to evaluate on
    #[arg(long, num_args = 1.., requires_all = ["valid_source", "source"], value_name = "F")]
    pub valid_target: Vec<PathBuf>,
    /// Files of source sentences that the best checkpoint translates at the end
    #[arg(long, num_args = 1.., requires_all = ["test_target", "valid_source"], value_name = "F")]
    pub test_source: Vec<PathBuf>,
    /// Files of target sentences that those translations are judged by
    #[arg(long, num_args = 1.., requires_all = ["test_source", "valid_source"], value_name = "F")]
    pub test_target: Vec<PathBuf>,
    /// Pieces of the tokenizer that is learned from the training text
    #[arg(long, value_name = "N")]
    pub vocab: Option<usize>,
    /// Without train.global_batch_size: as many pairs a step as fit, each padded to the longest, in N tokens
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub tokens: usize,
    /// The model, by name
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Replicas of the model
    #[arg(long, value_name = "D", conflicts_with = "ranks")]
    data: Option<usize>,
    /// Ranks that share each split layer
    #[arg(long, value_name = "T")]
    tensor: Option<usize>,
    /// Pipeline stages
    #[arg(long, value_name = "P")]
    stages: Option<usize>,
    /// Data ranks that share the experts; alone, it means as many replicas
    #[arg(long, value_name = "E")]
    expert: Option<usize>,
    /// The same as --data; with --auto, the ranks that there are
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Search the layout of all ranks in which a step is predicted to take least, of what is not given
    #[arg(long, conflicts_with = "stages")]
    auto: bool,
    /// Stop and save after this many steps; the schedule is unchanged
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Seed of the data, the initial values and the dropout
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// A configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An option of the configuration, such as schedule.rate=0.001
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Check every N steps that all replicas hold the same parameters, to the bit
    #[arg(long, value_name = "N")]
    pub check_replicas: Option<u64>,
    /// The folder of the run: checkpoints, metrics.jsonl, loss.svg, tokenizer.json
    #[arg(long, value_name = "DIR")]
    out: Option<String>,
    /// Go on from the latest checkpoint in --out
    #[arg(long, requires = "out")]
    resume: bool,
    /// Write what every rank does when, in some steps, to this file, for Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// Print the plan and stop
    #[arg(long)]
    pub plan: bool,
}

/// What this program sets where the user says nothing; number words.
const NUMBERS: &str = include_str!("numbers.toml");
/// The same for a parallel corpus.
const CORPUS: &str = include_str!("corpus.toml");
/// What is added to it with validation files: without them there is nothing to evaluate.
const VALIDATED: &str = "[train]\neval_every = 500\n";

/// The layout. Where the user says nothing of it: two ranks, attention replicated, experts divided over both.
const MESH: [&str; 4] =
    ["dist.data_parallel_size", "dist.tensor_parallel_size", "dist.expert_parallel_size", "pipeline.num_stages"];

impl Args {
    /// Whether a parallel corpus is given.
    pub fn has_corpus(&self) -> bool {
        !self.source.is_empty()
    }

    /// This program's settings < file < environment < `--set` < the other flags.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let (defaults, name) = if self.has_corpus() { (CORPUS, "corpus.toml") } else { (NUMBERS, "numbers.toml") };
        let mut layers = Layers::new().toml(defaults, Path::new(name))?;
        if !self.valid_source.is_empty() {
            layers = layers.toml(VALIDATED, Path::new(name))?;
        }
        if let Some(file) = &self.config {
            layers = layers.file(file)?;
        }
        let replicas = if self.auto { self.data } else { self.data.or(self.ranks) };
        let sizes = [replicas, self.tensor, self.expert, self.stages];
        let layers = layers.process_environment()?.command_line(&self.settings)?.flags(MESH.into_iter().zip(sizes))?;
        // Of stages it is said that they are chosen, and how many.
        let is_auto = self.auto || self.stages.is_some();
        let layers = layers.flags([("auto.auto_parallel", is_auto.then_some(true))])?;
        let layers = layers.flags([("cluster.ranks", self.ranks.filter(|_| self.auto))])?;
        let layers = layers.flags([("train.steps", self.steps)])?.flags([("train.seed", self.seed)])?;
        let resume = self.resume.then_some("latest");
        let layers = layers.flags([("train.out", self.out.as_deref()), ("train.resume", resume)])?;
        let layers = layers.flags([("profile.trace", self.trace.as_ref())])?;
        let mut config = layers.resolve()?;
        if config.searches() {
            if !config.is_given("cluster.ranks") {
                let sizes = [self.data, self.tensor].map(|size| size.unwrap_or(1));
                config.set("cluster.ranks", (sizes[0] * sizes[1]).max(2))?;
            }
        } else if !MESH.iter().chain(&["dist.pipeline_parallel_size"]).any(|key| config.is_given(key)) {
            config.set("dist.data_parallel_size", 2)?;
            config.set("dist.expert_parallel_size", 2)?;
        }
        by_default(config, if self.has_corpus() { "out/moe_t5-corpus" } else { "out/moe_t5-numbers" })
    }

    /// The model for a task.
    pub fn model(&self, task: &Task) -> Result<T5Config, Box<dyn std::error::Error>> {
        let name = self.model.as_deref().unwrap_or(task.default_model());
        let tokenizer = task.tokenizer();
        let config = T5Config::preset(name)?
            .with_vocab(tokenizer.vocab_size())
            .with_pad(tokenizer.pad())
            .with_eos(tokenizer.eos())
            .with_decoder_start(tokenizer.decoder_start());
        config.validate()?;
        Ok(config)
    }
}
