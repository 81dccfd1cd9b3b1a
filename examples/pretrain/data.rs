//! What is learned: a tokenizer, and two corpora of its tokens, in files.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use epl::models::indexed::{IndexedCorpus, PackedBlocks, TokenType, write};
use epl::models::text::corpus::Lines;
use epl::models::{BpeConfig, Tokenizer};

use crate::args::Args;
use crate::rule::Rule;

/// The tokenizer is learned from so many texts at most.
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
    /// What tells the corpus from others.
    pub fingerprint: String,
    /// The perplexity of whoever knows the rule, where the text is made by one.
    pub least_perplexity: Option<f64>,
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

impl Data {
    /// Makes the corpora of a run in its folder, or opens those that are there to go on with.
    pub fn prepare(args: &Args, seed: u64, out: &Path) -> Result<Self, Box<dyn Error>> {
        let (folder, file) = (out.join("data"), out.join("tokenizer.json"));
        let [train, valid] = ["train", "valid"].map(|name| folder.join(name));
        let texts = Texts::read(args, seed)?;
        let tokenizer = if args.resume {
            Tokenizer::load(file)?
        } else {
            let learned = BpeConfig::new(args.vocab).train(texts.train.iter().take(TEXTS))?;
            std::fs::create_dir_all(&folder)?;
            learned.save(file)?;
            encode(&texts.train, &learned, &train)?;
            encode(&texts.valid, &learned, &valid)?;
            learned
        };
        let [train, valid] = [train, valid].map(IndexedCorpus::open);
        let (train, valid) = (Arc::new(train?), Arc::new(valid?));
        let (texts_of, tokens) = ([train.documents(), valid.documents()], [train.tokens(), valid.tokens()]);
        println!(
            "{} texts of {} tokens, {} of {} held out, {} pieces",
            texts_of[0],
            tokens[0],
            texts_of[1],
            tokens[1],
            tokenizer.vocab_size()
        );
        Ok(Self {
            least_perplexity: texts.nats.map(|nats| (nats / tokens[1] as f64).exp()),
            fingerprint: train.fingerprint(),
            train: PackedBlocks::new(train, args.length)?,
            valid: PackedBlocks::new(valid, args.length)?,
            tokenizer,
        })
    }
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
