//! The command line, and the configuration it makes.

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Parser;
use epl::config::{Config, ConfigError, Layers};
use epl::models::BertConfig;
use epl::models::squad::WordPiece;

use crate::corpora::out::by_default;
use crate::data::mask;

/// Pretrain a BERT: it fills in words that are hidden, and says whether two texts stand in their order.
///
/// Without --text and --corpus it learns 60,000 texts by rule.
#[derive(Parser, Debug)]
#[command(version)]
pub struct Args {
    /// Files of texts, plain or .gz, with an empty line between two; each hundredth is held out
    #[arg(long, num_args = 1.., value_name = "F")]
    pub text: Vec<PathBuf>,
    /// A corpus of sentences that `epl-corpus` wrote, with one of held-out texts: its prefix
    #[arg(long, value_name = "PREFIX", conflicts_with = "text", requires = "vocab")]
    pub corpus: Option<PathBuf>,
    /// A vocab.txt, that of --corpus; without it, pieces are learned from the first 20,000 texts
    #[arg(long, value_name = "FILE")]
    pub vocab: Option<PathBuf>,
    /// How many pieces are learned
    #[arg(long, value_name = "N", default_value_t = 180, conflicts_with = "vocab")]
    pub pieces: usize,
    /// How many texts are made by rule
    #[arg(long, value_name = "N", default_value_t = 60_000, conflicts_with_all = ["text", "corpus"])]
    pub texts: usize,
    /// Tokens of the longest row
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub length: usize,
    /// The probability that a row is a shorter one; BERT's is 0.1
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub short: f64,
    /// How often each piece of text comes in an epoch, each time with other words hidden
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub duplicates: usize,
    /// A model by name, such as base
    #[arg(long, value_name = "NAME", conflicts_with_all = ["layers", "d_model"])]
    model: Option<String>,
    /// Layers of the model
    #[arg(long, value_name = "N", default_value_t = 3)]
    layers: usize,
    /// The width of its hidden states
    #[arg(long, value_name = "N", default_value_t = 128)]
    d_model: usize,
    /// A configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An option of the configuration, such as dist.tensor_parallel_size=2
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Stop and save after this many steps; the schedule is unchanged
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Seed of the texts by rule, what is hidden, the initial values and the order of the rows
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The folder of the run: corpora, vocab.txt, checkpoints, metrics.jsonl, loss.svg
    #[arg(long, value_name = "DIR")]
    out: Option<String>,
    /// Go on from the latest checkpoint in --out, with the same texts
    #[arg(long, requires = "out")]
    resume: bool,
    /// Print the plan and stop
    #[arg(long)]
    pub plan: bool,
}

/// What this program sets where the user says nothing.
const DEFAULTS: &str = include_str!("pretrain.toml");

impl Args {
    /// This program's settings < file < environment < `--set` < the other flags.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let layers = Layers::new().toml(DEFAULTS, Path::new("pretrain.toml"))?;
        let layers = match &self.config {
            Some(file) => layers.file(file)?,
            None => layers,
        };
        let layers = layers.process_environment()?.command_line(&self.settings)?;
        let layers = layers.flags([("train.seed", self.seed)])?.flags([("train.steps", self.steps)])?;
        let resume = self.resume.then_some("latest");
        let mut config = layers.flags([("train.out", self.out.as_deref()), ("train.resume", resume)])?.resolve()?;
        if !["cluster.ranks", "dist.data_parallel_size"].iter().any(|key| config.is_given(key)) {
            config.set("dist.data_parallel_size", 2)?;
        }
        by_default(config, if self.is_by_rule() { "out/bert_pretrain" } else { "out/bert_pretrain-text" })
    }

    /// Whether the model and the vocabulary can be, before anything is made.
    pub fn check(&self) -> Result<(), Box<dyn Error>> {
        let Some(vocab) = &self.vocab else { return Ok(self.model(self.pieces, 0).map(drop)?) };
        let pieces = WordPiece::load(vocab)?;
        mask(&pieces)?;
        Ok(self.model(pieces.vocab_size(), pieces.pad()).map(drop)?)
    }

    /// The model for so many pieces, one of which fills up.
    pub fn model(&self, vocab: usize, pad: i64) -> epl::Result<BertConfig> {
        let model = match &self.model {
            Some(name) => BertConfig::preset(name, vocab)?,
            None => BertConfig::tiny(vocab)
                .with_layers(self.layers)
                .with_d_model(self.d_model)
                .with_d_ff(4 * self.d_model)
                .with_heads((self.d_model / 32).max(1)),
        };
        let model = model.with_pad(pad);
        let (longest, length) = (model.longest_row(), self.length);
        if longest < length {
            let reason =
                format!("rows of {length} tokens, and the model has {longest} positions: give --length {longest}");
            return Err(epl::Error::invalid(reason));
        }
        if model.token_types < 2 {
            let reason = "the two texts of a row are told apart by their types, and this model has one type";
            return Err(epl::Error::invalid(format!("{reason}: give --model another one, such as base")));
        }
        model.validate()?;
        Ok(model)
    }

    /// Whether the texts are made by rule.
    pub fn is_by_rule(&self) -> bool {
        self.text.is_empty() && self.corpus.is_none()
    }
}
