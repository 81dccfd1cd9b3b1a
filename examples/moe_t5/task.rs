//! What is learned: a tokenizer, datasets, and how an evaluation is scored.

use std::error::Error;
use std::path::Path;

use burn::data::dataset::Dataset;
use epl::config::{Config, ResumeMode};
use epl::data::{LengthSamplerConfig, Sampler, ShuffledSampler};
use epl::evaluate::Measure;
use epl::models::text::{
    BpeConfig, CorpusBleu, Judged, MeanScore, NumberPairsConfig, Pair, ParallelCorpus, TokenPairs, Tokenizer,
};

use crate::args::Args;
use crate::out::is_saved;

/// The tokenizer in the folder of a run.
const TOKENIZER: &str = "tokenizer.json";
/// Pieces of the tokenizer where the user says nothing.
const NUMBER_PIECES: usize = 400;
/// Number words to learn them from: enough to meet every morpheme often.
const NUMBER_TEXTS: usize = 5000;
const CORPUS_PIECES: usize = 8000;
/// Longer sentences are left out of the training.
const LONGEST: usize = 80;

/// A task that a sequence-to-sequence model learns from pairs.
pub struct Task {
    tokenizer: Tokenizer,
    pub train: TokenPairs,
    /// What the loss is evaluated on; none without validation files.
    pub valid: Option<TokenPairs>,
    /// What is translated in an evaluation, as text.
    pub judged: Vec<Pair>,
    /// What the best checkpoint translates at the end; empty without test files.
    pub test: Vec<Pair>,
    numbers: bool,
    /// Padded tokens of a step, where no number of samples is given.
    tokens_a_step: usize,
}

impl Task {
    /// Reads or makes the data, and learns the tokenizer from the training text, or loads it to resume.
    /// Nothing is written.
    pub fn prepare(args: &Args, config: &Config, out: &Path) -> Result<Self, Box<dyn Error>> {
        let resumes = config.train.resume != ResumeMode::Never && is_saved(out)?;
        let kept = resumes.then(|| out.join(TOKENIZER));
        let task = match args.has_corpus() {
            true => Self::corpus(args, kept.as_deref())?,
            false => Self::numbers(args, config, kept.as_deref())?,
        };
        println!(
            "{} training pairs, {} to evaluate on, {} pieces",
            task.train.len(),
            task.judged.len(),
            task.tokenizer.vocab_size()
        );
        Ok(task)
    }

    fn numbers(args: &Args, config: &Config, kept: Option<&Path>) -> Result<Self, Box<dyn Error>> {
        let split = NumberPairsConfig::new().with_seed(config.train.seed).init()?;
        let pieces = args.vocab.unwrap_or(NUMBER_PIECES);
        let tokenizer = tokenizer(kept, || {
            let texts = split.training.texts().take(NUMBER_TEXTS);
            BpeConfig::new(pieces).with_all_bytes(false).train(texts)
        })?;
        let train = TokenPairs::all(&split.training, &tokenizer)?;
        let valid = TokenPairs::all(&split.held_out, &tokenizer)?;
        let judged = split.held_out.iter().collect::<Result<_, _>>()?;
        Ok(Self {
            tokenizer,
            train,
            valid: Some(valid),
            judged,
            test: Vec::new(),
            numbers: true,
            tokens_a_step: args.tokens,
        })
    }

    fn corpus(args: &Args, kept: Option<&Path>) -> Result<Self, Box<dyn Error>> {
        let corpus = ParallelCorpus::read(&args.source, &args.target)?;
        let pieces = args.vocab.unwrap_or(CORPUS_PIECES);
        let tokenizer = tokenizer(kept, || BpeConfig::new(pieces).train(corpus.texts()))?;
        let (train, dropped) = TokenPairs::up_to(LONGEST, &corpus, &tokenizer)?;
        println!("{dropped}");
        let mut judged = Vec::new();
        let mut valid = None;
        if !args.valid_source.is_empty() {
            let corpus = ParallelCorpus::read(&args.valid_source, &args.valid_target)?;
            valid = Some(TokenPairs::all(&corpus, &tokenizer)?);
            judged = corpus.iter().collect::<Result<_, _>>()?;
        }
        let test = match args.test_source.is_empty() {
            true => Vec::new(),
            false => ParallelCorpus::read(&args.test_source, &args.test_target)?.iter().collect::<Result<_, _>>()?,
        };
        Ok(Self { tokenizer, train, valid, judged, test, numbers: false, tokens_a_step: args.tokens })
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// What tells the tokenizer from others: a checkpoint means nothing with another one.
    pub fn fingerprint(&self) -> epl::Result<String> {
        let text = self.tokenizer.to_json().map_err(|error| epl::Error::invalid(error.to_string()))?;
        Ok(epl::trainer::fingerprint([text]))
    }

    /// Writes the tokenizer beside the checkpoints that need it.
    pub fn keep_tokenizer(&self, out: &Path) -> epl::Result<()> {
        self.tokenizer.save(out.join(TOKENIZER)).map_err(|error| epl::Error::invalid(error.to_string()))
    }

    pub fn default_model(&self) -> &'static str {
        if self.numbers { "moe_t5_numbers" } else { "moe_t5_corpus" }
    }

    /// The name of the score.
    pub fn score_name(&self) -> &'static str {
        if self.numbers { "exact_match" } else { "bleu" }
    }

    /// The score as the last line of a run shows it.
    pub fn show_score(&self, score: f64) -> String {
        if self.numbers { format!("exact match: {score:.1}%") } else { format!("BLEU: {score:.2}") }
    }

    /// Draws the global batch of every step, whatever the layout.
    pub fn sampler(&self, config: &Config, replicas: usize) -> epl::Result<Box<dyn Sampler>> {
        let (train, seed) = (&config.train, config.train.seed);
        if train.global_batch_size.is_some() || train.micro_batch_size.is_some() {
            let samples = config.batch(replicas)?.global_batch_size;
            return Ok(Box::new(ShuffledSampler::new(self.train.len(), samples, seed)?));
        }
        let lengths = (0..self.train.len()).map(|index| self.train.lengths(index).longest()).collect();
        Ok(Box::new(LengthSamplerConfig::new(seed).with_max_tokens(self.tokens_a_step).init(lengths)?))
    }

    /// What scores translations.
    pub fn measure(&self) -> Box<dyn Measure<Vec<Judged>>> {
        if self.numbers { Box::new(MeanScore::equal()) } else { Box::new(CorpusBleu) }
    }
}

/// The tokenizer of the run: learned, or to resume the one that is there.
fn tokenizer(
    kept: Option<&Path>,
    learn: impl FnOnce() -> epl::models::text::Result<Tokenizer>,
) -> epl::models::text::Result<Tokenizer> {
    kept.map_or_else(learn, Tokenizer::load)
}
