//! What is learned: pieces of words, and rows of two corpora of sentences.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use burn::data::dataset::Dataset;
use burn::data::dataset::transform::PartialDataset;
use epl::checkpoint::durable;
use epl::models::bert::{BertItem, PretrainingLabel};
use epl::models::indexed::{EncodeConfig, IndexedCorpus, MaskedWords, MaskedWordsConfig, TextEncoder, held_out_prefix};
use epl::models::squad::{Vocabulary, WordPiece};
use epl::models::text::{Document, DocumentForm, Documents, Sentences};

use crate::args::Args;
use crate::knower::{Reached, reached};
use crate::rule::Rule;

/// Pieces are learned from so many texts at most, the first ones.
const TEXTS: usize = 20_000;
/// Of so many texts one is held out.
const HELD_OUT: usize = 100;
/// Rows that are judged, at most.
const JUDGED: usize = 2000;
const VOCABULARY: &str = "vocab.txt";
const TEXT: &str = "text";

/// A row of which words are hidden.
pub type Row = BertItem<PretrainingLabel>;

/// The rows of a run, and what their tokens mean.
pub struct Data {
    pub pieces: WordPiece,
    pub train: MaskedWords,
    pub valid: Arc<PartialDataset<MaskedWords, Row>>,
    /// What tells them from others.
    pub fingerprint: String,
    /// What a reader who knows the rule reaches on the rows that are judged, where texts are made by one.
    pub of_rule: Option<Reached>,
}

impl Data {
    /// Opens the corpora that are given, or makes them below a run's folder, unless they were made of the same before: one process
    /// of a machine makes them, and the others wait.
    pub fn prepare(args: &Args, seed: u64) -> Result<Self, Box<dyn Error>> {
        if let (Some(corpus), Some(vocab)) = (&args.corpus, &args.vocab) {
            return Self::open(args, seed, corpus, vocab);
        }
        let folder = args.out().join("data").join(name(args, seed)?);
        durable::once(&folder, |partial| {
            println!("making corpora in {}", folder.display());
            make(args, seed, partial)
        })?;
        Self::open(args, seed, &folder.join(TEXT), &folder.join(VOCABULARY))
    }

    fn open(args: &Args, seed: u64, prefix: &Path, vocab: &Path) -> Result<Self, Box<dyn Error>> {
        let pieces = WordPiece::load(vocab)?;
        let mask =
            pieces.number("[MASK]").ok_or("the vocabulary has no [MASK]; give one that BERT was pretrained with")?;
        let config = MaskedWordsConfig::new(args.length, pieces.vocab_size(), pieces.cls(), pieces.sep(), mask)
            .with_never(vec![pieces.pad(), pieces.unk()])
            .with_duplicates(args.duplicates)
            .with_short(args.short);
        let rows = |prefix: &Path, seed: u64| -> epl::Result<MaskedWords> {
            let corpus = Arc::new(IndexedCorpus::open(prefix)?);
            println!("{}: {} texts, {} sentences", prefix.display(), corpus.documents(), corpus.sequences());
            config.clone().with_seed(seed).init(corpus)?.with_whole_words(pieces.goes_on())
        };
        let (train, valid) = (rows(prefix, seed)?, rows(&held_out_prefix(prefix), seed.wrapping_add(1))?);
        let fingerprint = epl::trainer::fingerprint([train.fingerprint(), valid.fingerprint()]);
        let judged = Dataset::<Row>::len(&valid).min(JUDGED);
        let valid = Arc::new(PartialDataset::new(valid, 0, judged));
        let of_rule = match args.is_by_rule() {
            true => {
                let rows = (0..judged).map(|row| valid.get(row)).collect::<Result<Vec<Row>, _>>()?;
                Some(reached(rows.into_iter(), &pieces, (mask, config.share))?)
            }
            false => None,
        };
        Ok(Self { pieces, train, valid, fingerprint, of_rule })
    }
}

/// The name of what these arguments make: another one for other texts, pieces or seeds.
fn name(args: &Args, seed: u64) -> epl::Result<String> {
    let pieces = match &args.vocab {
        Some(vocab) => Documents::identities(std::slice::from_ref(vocab))?.swap_remove(0),
        None => format!("{} pieces", args.pieces),
    };
    let texts = match args.is_by_rule() {
        true => vec![format!("{} by rule, seed {seed}", args.texts)],
        false => Documents::identities(&args.text)?,
    };
    let fingerprint = epl::trainer::fingerprint([vec![pieces], texts].concat());
    Ok(fingerprint.rsplit(' ').next().unwrap_or("corpus").to_string())
}

/// Makes the vocabulary and the corpora of all texts in one pass over them.
fn make(args: &Args, seed: u64, folder: &Path) -> Result<(), Box<dyn Error>> {
    // Sentences by rule stand on lines of their own.
    let cut = if args.is_by_rule() { Sentences::Lines } else { Sentences::Unicode };
    let config = EncodeConfig::new().with_sentences(cut).with_held_out(Some(HELD_OUT));
    let mut texts: Box<dyn Iterator<Item = epl::Result<Document>>> = match args.is_by_rule() {
        true => Box::new(Rule::new(seed).take(args.texts).map(|text| Ok(Document::from(text)))),
        false => {
            let documents = Documents::open(args.text.clone(), DocumentForm::Paragraphs)?;
            Box::new(documents.map(|document| Ok(document?)))
        }
    };
    let mut first = Vec::new();
    let vocabulary = match &args.vocab {
        Some(vocab) => Vocabulary::load(vocab)?,
        None => {
            first = texts.by_ref().take(TEXTS).collect::<epl::Result<Vec<Document>>>()?;
            Vocabulary::learn(config.to_learn_from(&first), args.pieces)?
        }
    };
    vocabulary.save(folder.join(VOCABULARY))?;
    let encoder = TextEncoder::from(&WordPiece::new(vocabulary)?);
    config.write(folder.join(TEXT), &encoder, first.into_iter().map(Ok).chain(texts))?;
    Ok(())
}
