//! What is learned: pieces of words, and rows of two corpora of sentences.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use burn::data::dataset::Dataset;
use burn::data::dataset::transform::PartialDataset;
use epl::models::bert::{BertItem, PretrainingLabel};
use epl::models::indexed::{EncodeConfig, IndexedCorpus, MaskedWords, MaskedWordsConfig, TextEncoder};
use epl::models::squad::{Vocabulary, WordPiece};
use epl::models::text::{Document, DocumentForm, Documents, Sentences};

use crate::args::Args;
use crate::corpora::{held_out, made};
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
    pub fn prepare(args: &Args, seed: u64, out: &Path) -> Result<Self, Box<dyn Error>> {
        if let (Some(corpus), Some(vocab)) = (&args.corpus, &args.vocab) {
            return Self::open(args, seed, corpus, vocab);
        }
        let folder = made(out, of(args, seed)?, |partial| make(args, seed, partial))?;
        Self::open(args, seed, &folder.join(TEXT), &folder.join(VOCABULARY))
    }

    fn open(args: &Args, seed: u64, prefix: &Path, vocab: &Path) -> Result<Self, Box<dyn Error>> {
        let pieces = WordPiece::load(vocab)?;
        let mask = mask(&pieces)?;
        let config = MaskedWordsConfig::new(args.length, pieces.vocab_size(), pieces.cls(), pieces.sep(), mask)
            .with_never(vec![pieces.pad(), pieces.unk()])
            .with_duplicates(args.duplicates)
            .with_short(args.short);
        let rows = |corpus: IndexedCorpus, what: &str, seed: u64| -> epl::Result<MaskedWords> {
            println!("{}: {} {what}, {} sentences", prefix.display(), corpus.documents(), corpus.sequences());
            config.clone().with_seed(seed).init(Arc::new(corpus))?.with_whole_words(pieces.goes_on())
        };
        let (train, valid) = (IndexedCorpus::open(prefix)?, held_out(prefix)?);
        let train = rows(train, "texts", seed)?;
        let valid = rows(valid, "held-out texts", seed.wrapping_add(1))?;
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

/// The token that stands where one is hidden.
pub fn mask(pieces: &WordPiece) -> epl::Result<i64> {
    let lacks = || epl::Error::invalid("the vocabulary has no [MASK]; give one that BERT was pretrained with");
    pieces.number("[MASK]").ok_or_else(lacks)
}

/// What corpora are made of: other texts, pieces or seeds make others.
fn of(args: &Args, seed: u64) -> epl::Result<Vec<String>> {
    let pieces = match &args.vocab {
        Some(vocab) => Documents::identities(std::slice::from_ref(vocab))?.swap_remove(0),
        None => format!("{} pieces", args.pieces),
    };
    let texts = match args.is_by_rule() {
        true => vec![format!("{} by rule, seed {seed}", args.texts)],
        false => Documents::identities(&args.text)?,
    };
    Ok([vec![pieces], texts].concat())
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
