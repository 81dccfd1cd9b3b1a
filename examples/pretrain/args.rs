//! The command line, and the configuration it makes.

use std::path::{Path, PathBuf};

use clap::Parser;
use epl::config::{Config, ConfigError, Layers};
use epl::models::decoder::DecoderExpertsConfig;
use epl::models::{DecoderConfig, Tokenizer};

use crate::corpora::out::by_default;

/// Train a decoder on text, packed into blocks.
///
/// Without --text and --corpus it learns 20 MB of sentences by rule.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    /// Files of texts, one a line, plain or .gz; each hundredth is held out
    #[arg(long, num_args = 1.., value_name = "F")]
    pub text: Vec<PathBuf>,
    /// A corpus that `epl-corpus` wrote, with one of held-out texts: its prefix
    #[arg(long, value_name = "PREFIX", conflicts_with = "text", requires = "tokenizer")]
    pub corpus: Option<PathBuf>,
    /// Of --corpus: its tokenizer.json, whose tokens pad, end and unknown are called as in T5
    #[arg(long, value_name = "F", requires = "corpus")]
    pub tokenizer: Option<PathBuf>,
    /// Bytes of the text by rule
    #[arg(long, value_name = "N", default_value_t = 20_000_000, conflicts_with_all = ["text", "corpus"])]
    pub bytes: usize,
    /// Pieces of the tokenizer that is learned from the first 20,000 texts
    #[arg(long, value_name = "N", default_value_t = 1024, conflicts_with = "corpus")]
    pub vocab: usize,
    /// Tokens of a block
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub length: usize,
    /// What the model is like
    #[arg(long, value_enum, default_value_t = Family::Llama)]
    model: Family,
    /// Layers of the model
    #[arg(long, value_name = "N", default_value_t = 3)]
    layers: usize,
    /// The width of its hidden states
    #[arg(long, value_name = "N", default_value_t = 128)]
    d_model: usize,
    /// A text that the model goes on with at each evaluation; otherwise it begins one
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// A configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An option of the configuration, such as dist.tensor_parallel_size=2
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Stop and save after this many steps; the schedule is unchanged
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Seed of the text by rule, the initial values and the order of the blocks
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The folder of the run: corpora, tokenizer, checkpoints, metrics.jsonl, loss.svg
    #[arg(long, value_name = "DIR")]
    out: Option<String>,
    /// Go on from the latest checkpoint in --out, with the same texts
    #[arg(long, requires = "out")]
    resume: bool,
    /// Print the plan and stop
    #[arg(long)]
    pub plan: bool,
}

/// What a model is like.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Family {
    /// Learned positions, LayerNorm, GELU
    Gpt2,
    /// Rotary positions, RMSNorm, SiLU
    Llama,
    /// A Llama with eight experts, two for each token
    Mixtral,
}

/// What this program sets where the user says nothing.
const DEFAULTS: &str = include_str!("pretrain.toml");

impl Args {
    /// This program's settings < file < environment < `--set` < the other flags.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut layers = Layers::new().toml(DEFAULTS, Path::new("pretrain.toml"))?;
        if let Some(file) = &self.config {
            layers = layers.file(file)?;
        }
        let layers = layers.process_environment()?.command_line(&self.settings)?;
        let layers = layers.flags([("train.steps", self.steps)])?.flags([("train.seed", self.seed)])?;
        let resume = self.resume.then_some("latest");
        let layers = layers.flags([("train.out", self.out.as_deref()), ("train.resume", resume)])?;
        let mut config = layers.resolve()?;
        if !["cluster.ranks", "dist.data_parallel_size"].iter().any(|key| config.is_given(key)) {
            config.set("dist.data_parallel_size", 2)?;
        }
        by_default(config, if self.is_by_rule() { "out/pretrain" } else { "out/pretrain-text" })
    }

    /// Whether the text is made by rule.
    pub fn is_by_rule(&self) -> bool {
        self.text.is_empty() && self.corpus.is_none()
    }

    /// The model for a tokenizer, with positions for so many tokens at least.
    pub fn model(&self, tokenizer: &Tokenizer, longest: usize) -> DecoderConfig {
        let vocab = tokenizer.vocab_size();
        let config = match self.model {
            Family::Gpt2 => DecoderConfig::new(vocab).with_d_ff(4 * self.d_model),
            Family::Llama | Family::Mixtral => DecoderConfig::llama_like(vocab).with_d_ff(8 * self.d_model / 3),
        };
        let experts = matches!(self.model, Family::Mixtral).then(|| DecoderExpertsConfig::new(8));
        config
            .with_experts(experts)
            .with_d_model(self.d_model)
            .with_heads((self.d_model / 32).max(1))
            .with_layers(self.layers)
            .with_positions(longest.max(self.length))
            .with_embedding_dropout(0.0)
            .with_dropout(0.0)
            .with_attention_dropout(0.0)
            .with_pad(Some(tokenizer.pad()))
            .with_ends(vec![tokenizer.eos()])
    }
}
