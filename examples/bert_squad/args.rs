//! The command line, and the configuration it makes.

use std::path::{Path, PathBuf};

use clap::Parser;
use epl::config::{Config, ConfigError, Layers};
use epl::models::BertConfig;
use epl::models::bert;
use epl::models::huggingface::Folder;
use epl::models::squad::{FeaturesConfig, WordPiece, check_uncased};

use crate::out::by_default;

/// Train a BERT across pipeline stages to answer questions about texts.
///
/// Without --data it learns the 70 questions of a sample by heart.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    /// A file of questions to learn, in the form of SQuAD 1.1
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// A file of questions to predict at the end [default: those that were learned]
    #[arg(long, requires = "data", value_name = "FILE")]
    pub valid: Option<PathBuf>,
    /// A vocab.txt; without it, pieces are learned from the training text
    #[arg(long, value_name = "FILE")]
    pub vocab: Option<PathBuf>,
    /// How many pieces are learned
    #[arg(long, conflicts_with = "vocab", value_name = "N", default_value_t = 2000)]
    pub pieces: usize,
    /// A folder of Hugging Face to start from; it needs --vocab
    #[arg(long, requires = "vocab", conflicts_with = "model", value_name = "FOLDER")]
    weights: Option<PathBuf>,
    /// The model, by name, without --weights
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    model: String,
    /// Tokens of the longest row [default: 192, with --data 384]
    #[arg(long, value_name = "N")]
    length: Option<usize>,
    /// Pieces from one window of a long text to the next
    #[arg(long, value_name = "N", default_value_t = 128)]
    stride: usize,
    /// Pieces of a question that are read
    #[arg(long, value_name = "N", default_value_t = 64)]
    question: usize,
    /// Stages of the pipeline
    #[arg(long, value_name = "P")]
    stages: Option<usize>,
    /// Stop after this many steps; the schedule is unchanged
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Seed of the data, the initial values and the dropout
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// An option of the configuration, such as schedule.rate=0.001
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// The folder of the run: predictions, vocab.txt, checkpoints, metrics.jsonl, loss.svg
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

/// What the model is, and where its first values come from, if not from the seed.
pub struct Start {
    pub model: BertConfig,
    pub weights: Option<Folder>,
}

/// What this program sets where the user says nothing; the sample.
const SAMPLE: &str = include_str!("sample.toml");
/// The same for a file of questions.
const SQUAD: &str = include_str!("squad.toml");
/// How often a file of questions is gone through.
const EPOCHS: usize = 2;

/// Stages that are chosen, and how many.
const STAGES: [&str; 2] = ["auto.auto_parallel", "pipeline.num_stages"];
/// The other way to say how many.
const SIZE: &str = "dist.pipeline_parallel_size";

impl Args {
    /// This program's settings < environment < `--set` < the other flags, with a schedule for so many rows where the batch of
    /// a step is known: without `train.global_batch_size` it depends on the replicas, which the launch tells.
    pub fn config(&self, rows: usize) -> Result<Config, ConfigError> {
        let (defaults, name) = if self.data.is_some() { (SQUAD, "squad.toml") } else { (SAMPLE, "sample.toml") };
        let layers = Layers::new().toml(defaults, Path::new(name))?.process_environment()?;
        let layers = layers.command_line(&self.settings)?.flags([("train.seed", self.seed)])?;
        let layers = layers.flags([(STAGES[0], self.stages.map(|_| true))])?.flags([(STAGES[1], self.stages)])?;
        let layers = layers.flags([("train.steps", self.steps)])?.flags([("profile.trace", self.trace.as_ref())])?;
        let resume = self.resume.then_some("latest");
        let layers = layers.flags([("train.out", self.out.as_deref()), ("train.resume", resume)])?;
        let mut config = by_default(layers.resolve()?, "out/bert_squad")?;
        if ![STAGES[0], STAGES[1], SIZE].iter().any(|key| config.is_given(key)) {
            config.set(STAGES[0], true)?;
            config.set(STAGES[1], 2)?;
        }
        match config.train.global_batch_size {
            Some(batch) => scheduled(config, rows.div_ceil(batch)),
            None => Ok(config),
        }
    }

    /// How rows are made.
    pub fn features(&self) -> FeaturesConfig {
        // All texts of the sample fit into rows of 192.
        let length = self.length.unwrap_or(if self.data.is_some() { 384 } else { 192 });
        FeaturesConfig::new().with_length(length).with_stride(self.stride).with_longest_question(self.question)
    }

    /// The model for a vocabulary.
    pub fn start(&self, tokenizer: &WordPiece) -> Result<Start, Box<dyn std::error::Error>> {
        let vocab = tokenizer.vocab_size();
        let Some(folder) = &self.weights else {
            let model = BertConfig::preset(&self.model, vocab)?.with_pad(tokenizer.pad());
            return Ok(Start { model, weights: None });
        };
        check_uncased(folder)?;
        let (folder, model) = bert::open(folder)?;
        if model.vocab != vocab {
            let tokens = model.vocab;
            return Err(format!("the weights know {tokens} tokens and the vocabulary {vocab}; give its own").into());
        }
        Ok(Start { model, weights: Some(folder) })
    }
}

/// Where nothing is said of the schedule, a file that takes so many steps is gone through [`EPOCHS`] times; a tenth is the
/// warm-up, and then the rate falls in a line.
pub fn scheduled(mut config: Config, steps: usize) -> Result<Config, ConfigError> {
    if !config.is_given("schedule.steps") {
        config.set("schedule.steps", EPOCHS * steps)?;
    }
    // Milestones are not before its end.
    if !config.is_given("schedule.warmup_steps") && config.schedule.milestones.is_empty() {
        config.set("schedule.warmup_steps", config.schedule.steps.unwrap_or(0) / 10)?;
    }
    if !config.is_given("schedule.kind") {
        config.set("schedule.kind", "linear")?;
    }
    Ok(config)
}
