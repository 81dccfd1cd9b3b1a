//! What is learned: a tokenizer, and two corpora of its tokens, in files.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use epl::checkpoint::durable;
use epl::models::indexed::{EncodeConfig, IndexedCorpus, PackedBlocks, TextEncoder};
use epl::models::text::{Document, DocumentForm, Documents};
use epl::models::{BpeConfig, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::args::Args;
use crate::corpora::{held_out, made};
use crate::rule::Rule;

/// The tokenizer is learned from so many texts at most, the first ones.
const TEXTS: usize = 20_000;
/// Of so many texts one is held out.
const HELD_OUT: usize = 100;

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

/// What is said of corpora beside them.
#[derive(Serialize, Deserialize)]
struct Said {
    /// Of the held-out texts, by the rule: how little they tell, in nats.
    nats: Option<f64>,
}

const SAID: &str = "corpus.json";
const TOKENIZER: &str = "tokenizer.json";
const TEXT: &str = "text";

/// What corpora are made of: other texts, pieces or seeds make others.
fn of(args: &Args, seed: u64) -> epl::Result<Vec<String>> {
    let mut parts = vec![format!("{} pieces", args.vocab)];
    if args.text.is_empty() {
        parts.push(format!("{} bytes by rule, seed {seed}", args.bytes));
    }
    parts.extend(Documents::identities(&args.text)?);
    Ok(parts)
}

impl Data {
    /// Opens the corpora that are given, or makes them below a run's folder, unless they were made of the same before: one process
    /// of a machine makes them, and the others wait.
    pub fn prepare(args: &Args, seed: u64, out: &Path) -> Result<Self, Box<dyn Error>> {
        if let (Some(corpus), Some(tokenizer)) = (&args.corpus, &args.tokenizer) {
            return Self::open(corpus, tokenizer, None, args.length);
        }
        let folder = made(out, of(args, seed)?, |partial| make(args, seed, partial))?;
        let said: Said = serde_json::from_slice(&fs::read(folder.join(SAID))?)?;
        Self::open(&folder.join(TEXT), &folder.join(TOKENIZER), said.nats, args.length)
    }

    fn open(prefix: &Path, tokenizer: &Path, nats: Option<f64>, length: usize) -> Result<Self, Box<dyn Error>> {
        let tokenizer = Tokenizer::load(tokenizer)?;
        let (train, valid) = (Arc::new(IndexedCorpus::open(prefix)?), Arc::new(held_out(prefix)?));
        println!(
            "{} texts of {} tokens, {} of {} held out, {} pieces, {}",
            train.documents(),
            train.tokens(),
            valid.documents(),
            valid.tokens(),
            tokenizer.vocab_size(),
            prefix.display()
        );
        let blocks = |corpus: &Arc<IndexedCorpus>, what: &str| {
            PackedBlocks::new(corpus.clone(), length).map_err(|error| format!("{what} texts: {error}"))
        };
        Ok(Self {
            of_rule: nats.map(|nats| (nats / valid.tokens() as f64).exp()),
            fingerprint: epl::trainer::fingerprint([train.fingerprint(), valid.fingerprint(), tokenizer.to_json()?]),
            train: blocks(&train, "the training")?,
            valid: blocks(&valid, "the held-out")?,
            tokenizer,
        })
    }
}

/// Makes the tokenizer and the corpora of all texts in one pass over them.
fn make(args: &Args, seed: u64, folder: &Path) -> Result<(), Box<dyn Error>> {
    let config = EncodeConfig::new().with_held_out(Some(HELD_OUT));
    let (mut nats, mut bytes, mut number, is_by_rule) = (0.0, 0, 0, args.text.is_empty());
    let mut texts: Box<dyn Iterator<Item = epl::Result<Document>>> = if is_by_rule {
        let text = |(text, of_text): (String, f64)| {
            bytes += text.len();
            let is_enough = bytes > args.bytes;
            nats += if config.holds_out(number) && !is_enough { of_text } else { 0.0 };
            number += 1;
            (!is_enough).then(|| Ok(Document::from(text)))
        };
        Box::new(Rule::new(seed).map_while(text))
    } else {
        let documents = Documents::open(args.text.clone(), DocumentForm::Lines)?;
        Box::new(documents.map(|document| Ok(document?)))
    };
    let first = texts.by_ref().take(TEXTS).collect::<epl::Result<Vec<Document>>>()?;
    let tokenizer = BpeConfig::new(args.vocab).train(config.to_learn_from(&first).into_iter())?;
    tokenizer.save(folder.join(TOKENIZER))?;
    let config = config.clone().with_end(Some(tokenizer.eos()));
    config.write(folder.join(TEXT), &TextEncoder::from(&tokenizer), first.into_iter().map(Ok).chain(texts))?;
    let said = Said { nats: is_by_rule.then_some(nats) };
    Ok(durable::replace(&folder.join(SAID), &serde_json::to_vec(&said)?)?)
}
