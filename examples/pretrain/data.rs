//! What is learned: a tokenizer, and two corpora of its tokens, in a folder that is named by what they are made of.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epl::models::indexed::{IndexedCorpus, PackedBlocks, TokenType, write};
use epl::models::text::corpus::Lines;
use epl::models::{BpeConfig, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::args::Args;
use crate::rule::Rule;

/// The tokenizer is learned from so many texts at most, the first ones.
const TEXTS: usize = 20_000;
/// Of so many texts one is held out.
const HELD_OUT: usize = 100;
/// Texts that are turned into tokens at a time, on all threads.
const CHUNK: usize = 4096;

/// The corpora of a run, and what their tokens mean.
pub struct Data {
    pub tokenizer: Tokenizer,
    pub train: PackedBlocks,
    pub valid: PackedBlocks,
    /// What tells them from others.
    pub fingerprint: String,
    /// The perplexity of whoever knows the rule and all that stands before, where the text is made by one.
    pub of_rule: Option<f64>,
}

/// What is said of corpora beside them, once they are whole.
#[derive(Serialize, Deserialize)]
struct Said {
    /// Of the held-out texts, by the rule.
    nats: Option<f64>,
}

/// Texts, and of those held out by rule how little they tell, in nats.
struct Texts {
    train: Vec<String>,
    valid: Vec<String>,
    nats: Option<f64>,
}

impl Texts {
    fn read(args: &Args, seed: u64) -> Result<Self, Box<dyn Error>> {
        let mut texts = Self { train: Vec::new(), valid: Vec::new(), nats: args.text.is_empty().then_some(0.0) };
        let mut lines = Lines::default();
        for file in &args.text {
            lines.append_file(file)?;
        }
        lines.iter().filter(|line| !line.trim().is_empty()).for_each(|line| texts.push(line.to_string(), 0.0));
        if args.text.is_empty() {
            let mut bytes = 0;
            let enough = |text: &(String, f64)| {
                bytes += text.0.len();
                bytes < args.bytes
            };
            Rule::new(seed).take_while(enough).for_each(|(text, nats)| texts.push(text, nats));
        }
        if texts.valid.is_empty() {
            return Err(format!("{} texts are too few: each {HELD_OUT}th is held out", texts.train.len()).into());
        }
        Ok(texts)
    }

    fn push(&mut self, text: String, nats: f64) {
        if (self.train.len() + self.valid.len() + 1).is_multiple_of(HELD_OUT) {
            self.valid.push(text);
            self.nats.iter_mut().for_each(|sum| *sum += nats);
        } else {
            self.train.push(text);
        }
    }
}

/// The name of what these arguments make: another one for other texts, pieces or seeds.
fn name(args: &Args, seed: u64) -> Result<String, Box<dyn Error>> {
    let mut parts = vec![format!("{} pieces", args.vocab).into_bytes()];
    if args.text.is_empty() {
        parts.push(format!("{} bytes by rule, seed {seed}", args.bytes).into_bytes());
    }
    for file in &args.text {
        parts.push(fs::read(file).map_err(|error| epl::Error::file(file, error))?);
    }
    let fingerprint = epl::trainer::fingerprint(parts);
    Ok(fingerprint.rsplit(' ').next().unwrap_or("corpus").to_string())
}

impl Data {
    /// Makes the corpora below a run's folder, or opens those that were made of the same before. They are made beside their place
    /// and get it when they are whole: of several processes the first one's are read, and an earlier run keeps its own.
    pub fn prepare(args: &Args, seed: u64, out: &Path) -> Result<Self, Box<dyn Error>> {
        let all = out.join("data");
        let folder = all.join(name(args, seed)?);
        if !folder.join(SAID).exists() {
            fs::create_dir_all(&all)?;
            let made = tempfile::Builder::new().prefix(".partial-").tempdir_in(&all)?;
            make(args, seed, made.path())?;
            if let Err(error) = fs::rename(made.path(), &folder)
                && !folder.join(SAID).exists()
            {
                return Err(epl::Error::file(&folder, error).into());
            }
        }
        Self::open(&folder, args.length)
    }

    fn open(folder: &Path, length: usize) -> Result<Self, Box<dyn Error>> {
        let said: Said = serde_json::from_slice(&fs::read(folder.join(SAID))?)?;
        let tokenizer = Tokenizer::load(folder.join(TOKENIZER))?;
        let open = |name: &str| IndexedCorpus::open(folder.join(name)).map(Arc::new);
        let (train, valid) = (open(TRAIN)?, open(VALID)?);
        println!(
            "{} texts of {} tokens, {} of {} held out, {} pieces, in {}",
            train.documents(),
            train.tokens(),
            valid.documents(),
            valid.tokens(),
            tokenizer.vocab_size(),
            folder.display()
        );
        let blocks = |corpus: &Arc<IndexedCorpus>, what: &str| {
            PackedBlocks::new(corpus.clone(), length).map_err(|error| format!("{what} texts: {error}"))
        };
        Ok(Self {
            of_rule: said.nats.map(|nats| (nats / valid.tokens() as f64).exp()),
            fingerprint: epl::trainer::fingerprint([train.fingerprint(), valid.fingerprint(), tokenizer.to_json()?]),
            train: blocks(&train, "the training")?,
            valid: blocks(&valid, "the held-out")?,
            tokenizer,
        })
    }
}

const SAID: &str = "corpus.json";
const TOKENIZER: &str = "tokenizer.json";
const TRAIN: &str = "train";
const VALID: &str = "valid";

fn make(args: &Args, seed: u64, folder: &Path) -> Result<(), Box<dyn Error>> {
    let texts = Texts::read(args, seed)?;
    let tokenizer = BpeConfig::new(args.vocab).train(texts.train.iter().take(TEXTS))?;
    tokenizer.save(folder.join(TOKENIZER))?;
    encode(&texts.train, &tokenizer, &folder.join(TRAIN))?;
    encode(&texts.valid, &tokenizer, &folder.join(VALID))?;
    fs::write(folder.join(SAID), serde_json::to_vec(&Said { nats: texts.nats })?)?;
    Ok(())
}

/// Writes texts as tokens, each a document that ends with a token of its own.
fn encode(texts: &[String], tokenizer: &Tokenizer, to: &PathBuf) -> Result<(), Box<dyn Error>> {
    let invalid = |error: epl::models::text::Error| epl::Error::invalid(error.to_string());
    let documents = texts.chunks(CHUNK).flat_map(|chunk| match tokenizer.encode_batch(chunk.to_vec()) {
        Ok(documents) => documents.into_iter().map(|tokens| Ok(vec![tokens])).collect(),
        Err(error) => vec![Err(invalid(error))],
    });
    write(to, TokenType::for_vocabulary(tokenizer.vocab_size()), documents)?;
    Ok(())
}
