//! Text for translation models: what is read, how it is cut into pieces, how the result is scored.
//!
//! ```text
//! numbers ──┐
//!           ├─> Dataset<Pair> ──tokenizer──> TokenPairs ──> batches, training
//! corpus  ──┘                                          generated tokens ──tokenizer──> bleu, exact match
//! ```
//!
//! - [`numbers`]: English and German number words by rule, split in training and held-out numbers;
//! - [`tokenizer`]: characters or byte-pair pieces, learned from the training text;
//! - [`corpus`]: texts and sentence pairs from files, plain or gzip, and the same pairs as tokens;
//! - [`bleu`]: corpus BLEU by sacreBLEU's definition;
//! - [`exact_match`]: the share of outputs that equal their reference;
//! - [`answer`]: answers compared word by word, by SQuAD's definition;
//! - [`measure`]: all three over a validation set, whatever the layout.
//!
//! Everything here is host code without tensors. What a user can get wrong comes back as [`Error`].

mod error;
mod pair;

pub mod answer;
pub mod bleu;
pub mod corpus;
pub mod exact_match;
pub mod measure;
pub mod numbers;
pub mod tokenizer;

pub use answer::{normalized, token_f1};
pub use bleu::{Bleu, BleuCounts};
pub use corpus::{
    Document, DocumentForm, Documents, Dropped, Lengths, ParallelCorpus, Sentences, TokenPair, TokenPairs,
};
pub use error::{Error, Result};
pub use exact_match::ExactMatch;
pub use measure::{CorpusBleu, Judged, MeanScore};
pub use numbers::{NumberPairs, NumberPairsConfig};
pub use pair::{Pair, PairBatcher};
pub use tokenizer::{BpeConfig, Tokenizer};
